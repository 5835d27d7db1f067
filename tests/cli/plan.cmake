# SPDX-License-Identifier: Apache-2.0
# `adamant plan`: what is known to fit does, what cannot does not, the figures are those of the formulas, and the errors
# say what to do. FOLDER: where files may be written.
cmake_minimum_required(VERSION 3.25)

include(${CMAKE_CURRENT_LIST_DIR}/tool.cmake)
function(run)
    execute_process(COMMAND ${EMULATOR} ${ADAMANT} plan ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out
                    ERROR_VARIABLE err)
    set(status "${status}" PARENT_SCOPE)
    if(NOT out MATCHES "^{") # JSON
        is_readable("${out}")
    endif()
    is_singular("${err}")
    set(out "${out}" PARENT_SCOPE)
    set(err "${err}" PARENT_SCOPE)
endfunction()

# Part of the text. expected: 0, it fits; 1, it does not.
function(shows expected pattern)
    run(${ARGN})
    if(NOT status EQUAL ${expected} OR NOT out MATCHES "${pattern}" OR NOT err STREQUAL "")
        message(FATAL_ERROR "adamant plan ${ARGN}: exit status ${status}, expected ${expected} and '${pattern}'\n${out}${err}")
    endif()
endfunction()

# Members of the object, as "path,to,member" and value, one after the other; ON and OFF are JSON's true and false.
function(json expected)
    list(POP_BACK ARGN wanted)
    string(REPLACE "|" ";" wanted "${wanted}")
    run(${ARGN} --json)
    if(NOT status EQUAL ${expected})
        message(FATAL_ERROR "adamant plan ${ARGN} --json: exit status ${status}, expected ${expected}\n${out}${err}")
    endif()
    while(wanted)
        list(POP_FRONT wanted path value)
        string(REPLACE "," ";" members "${path}")
        string(JSON found ERROR_VARIABLE error GET "${out}" ${members})
        if(NOT error STREQUAL NOTFOUND OR NOT found STREQUAL value)
            message(FATAL_ERROR "adamant plan ${ARGN} --json: ${path} is '${found}', expected '${value}' (${error})\n${out}")
        endif()
    endwhile()
    set(out "${out}" PARENT_SCOPE)
endfunction()

# An error: exit status 2, nothing on stdout.
function(fails pattern)
    run(${ARGN})
    if(NOT status EQUAL 2 OR NOT out STREQUAL "" OR NOT err MATCHES "${pattern}")
        message(FATAL_ERROR "adamant plan ${ARGN}: exit status ${status}, expected 2 and '${pattern}'\n${out}${err}")
    endif()
endfunction()

# The published numbers of parameters, and what SuperOffload's authors say fits, with their ratio and with the best one.
foreach(line
        "qwen2.5-3b 1 3085938688"
        "llama-3.1-8b 1 8030261248"
        "phi-4 1 14659507200"
        "qwen3-14b 1 14768307200"
        "gpt-oss-20b 1 20914757184"
        "qwen3-30b-a3b 2 30532122624"
        "seed-oss-36b 2 36151104512"
        "llama-3-70b 4 70553706496")
    string(REPLACE " " ";" line "${line}")
    list(GET line 0 model)
    list(GET line 1 gpus)
    list(GET line 2 params)
    json(0 ${model} --gpus ${gpus}xGH200 --ratio 0.9 "fits|ON|model,params|${params}|gpus|${gpus}|gpu,fits|ON|host,fits|ON")
    json(0 ${model} --gpus ${gpus}xGH200 "fits|ON|model,params|${params}")
endforeach()

# And what cannot fit.
json(1 llama-3-70b --gpus 1xGH200 "fits|OFF|gpu,fits|OFF|host,fits|OFF|host,items,state|846644477952|ratios_that_fit||best|")
json(1 gpt-oss-20b --gpus 1xH100-PCIe --host-memory 128GB "fits|OFF|gpu,fits|ON|host,fits|OFF|host,available_bytes|128000000000")
foreach(line "qwen3-30b-a3b 1" "seed-oss-36b 1" "llama-3-70b 2")
    string(REPLACE " " ";" line "${line}")
    list(GET line 0 model)
    list(GET line 1 gpus)
    json(1 ${model} --gpus ${gpus}xGH200 "fits|OFF")
endforeach()

# Every figure of one plan: 1e9 parameters on 2 GPUs, a tenth of them, which is the embedding, stepped there. Of a layer's
# 80e6, attention has 4 * 2000^2, and each projection of the MLP is 10666 wide.
set(small --params 1e9 --layers 10 --hidden 2000 --vocab 50000 --gpus 2 --gpu-memory 80GB --host-memory 100GB
    --bucket 1e8 --batch 2 --seq 1000)
string(CONCAT figures
    "fits|ON|elems,share|500000000|elems,cpu|450000000|elems,device|50000000|"
    "gpu,items,weights|1000000000|gpu,items,gradient_buckets|400000000|gpu,items,device_gradients|100000000|"
    "gpu,items,device_state|600000000|gpu,items,device_records|0|gpu,items,gathered|360000000|"
    "gpu,items,activations|581312000|gpu,items,logits|1200000000|gpu,items,reserve|4000000000|"
    "gpu,total_bytes|8241312000|host,items,state|5400000000|host,items,gradients|900000000|"
    "host,items,weights_out|900000000|host,items,journal|1350000000|host,items,device_arrays|800000000|"
    "host,items,system|24000000000|host,total_bytes|33350000000|pinned_bytes|1800000000|step||missing|"
    "--cpu-rate or --measure, --gpu-rate, --link-down (or --link), --link-up (or --link), "
    "--backward (or --flops), --forward (or --flops)")
json(0 ${small} --ratio 0.9 "${figures}")
string(CONCAT figures "gpu,items,device_records|600000000|gpu,items,reserve|0|host,items,journal|0|"
    "host,items,device_arrays|0|host,total_bytes|31200000000")
json(0 ${small} --ratio 90% --device-records --give-back --journal 0 --gpu-reserve 0 "${figures}")
# Bits for changed weights.
json(0 ${small} --ratio 0.9 --track-changes "host,items,changed|81250000|gpu,items,device_changed|12500000")
# Moments in 16 bits; records are then copies of the state, which is 8 bytes.
string(CONCAT figures "gpu,items,weights|2000000000|gpu,items,gradient_buckets|800000000|host,items,state|4000000000|"
    "host,items,gradients|2000000000|host,items,weights_out|0|host,items,journal|4000000000|types,grad|float32")
json(0 ${small} --ratio 1 --exp-avg bf16 --exp-avg-sq bf16 --grad fp32 --weight-out none "${figures}")
# Moments of 8 bits, 68 bytes for 64 of them; records are copies, of 6.125 bytes, as there are masters and weights.
string(CONCAT figures "gpu,items,device_state|306250000|host,items,state|2756250000|host,items,journal|2756250000|"
    "host,items,device_arrays|506250000|types,exp_avg|quantized8|types,exp_avg_sq|quantized8|types,param|float32")
json(0 ${small} --ratio 0.9 --state quantized8 "${figures}")
json(0 ${small} --ratio 0.9 --exp-avg quantized8 --exp-avg-sq quantized8 "${figures}")
string(CONCAT figures "gpu,items,device_state|206250000|host,items,state|1856250000|host,items,journal|2756250000|"
    "host,items,device_arrays|406250000|types,param|split_float32|types,weight_out|bfloat16")
json(0 ${small} --ratio 0.9 --state split_float32+quantized8 "${figures}")
shows(0 "residuals of masters and moments, 4.125 B for each of\n +450,000,000\n" ${small} --ratio 0.9
      --state split_float32+quantized8)
shows(0 "\n  CPU step  .* elements/s +14.25 B an element at .*\n  records +.33% of a CPU step " phi-4 --gpus GH200
      --state split_float32+quantized8)
# With them models fit on fewer GPUs.
foreach(line "qwen3-30b-a3b 1" "seed-oss-36b 1" "llama-3-70b 2")
    string(REPLACE " " ";" line "${line}")
    list(GET line 0 model)
    list(GET line 1 gpus)
    json(0 ${model} --gpus ${gpus}xGH200 --state split_float32+quantized8 --journal 5 "fits|ON|gpu,fits|ON|host,fits|ON")
endforeach()
json(1 llama-3-70b --gpus 1xGH200 --state split_float32+quantized8 "fits|OFF|host,items,state|291034039296")

# Its time: the CPU takes 5 s for all, and 15% more with records, where those are not worth it for the last, backward 2 s, forward 1 s, links and GPU next to nothing.
set(rates --cpu-rate 1e8 --gpu-rate 1e15 --link 100000 --backward 2 --forward 1)
json(0 ${small} ${rates} --ratio 1 "speculation,waits_for_norm|OFF|speculation,room_for_share|1|step,bound_by|cpu|step,timeline,0,row|backward|step,timeline,2,row|cpu")
# With 0.348 of them, records among them, it takes as long as backward; with overlap it may take a part of forward's time, too.
shows(0 "\nstep      3.00 s with this ratio, 1,333 tokens/s .*\nbest      ratio 0.348 with 3.00 s, of those that leave 3% of each memory free\n" ${small} ${rates})
shows(0 "\nbest      ratio 0.451 with 3.00 s, of those" ${small} ${rates} --overlap-forward)
shows(0 [[

a step with ratio 1
  backward  \|####################                                            \| 2.00 s
  down      \|====================                                            \| 2.00 s
  CPU       \|######################################################          \| 5.48 s
  up        \|======================================================          \| 5.48 s
  GPU step  \|                                                                \| -
  forward   \|                                                      ##########\| 1.00 s
            0             1.62 s          3.24 s          4.86 s          6.48 s
]] ${small} ${rates} --ratio 1)

# ZenFlow. Of each GPU's 5e8 elements, all in matrices, a tenth is selected; the host moves 2.5e9 * 20 B/s, so a byte of
# each takes it 10 ms: accumulating takes 80 ms in a window's first step and 120 ms in the others. A byte of each that is deferred
# takes it 9 ms, and their step 180 ms. All gradients are downloaded in 400 ms, and all weights uploaded in 400 ms. They
# publish by 3.6 GB that the GPU moves: 180 ns, a quarter of it in each step.
set(zenflow ${small} --ratio 1 --exp-avg bf16 --exp-avg-sq bf16 --grad fp32 --weight-out none --journal 0
    --cpu-rate 2.5e9)
set(rates --gpu-rate 1e15 --link 5)
# On the GPU a second array of weights, all gradients, and those of what is selected once more; 8 bytes of state and as
# many of records. On the host all gradients, sums and weights, and an image of that state and of room for 4 of gradients.
string(CONCAT figures
    "zenflow,update_interval|4|zenflow,select_interval||zenflow,selections_counted|OFF|zenflow,overlap|ON|"
    "zenflow,selected_elems|50000000|zenflow,deferred_elems|450000000|zenflow,ways,plain,down_bytes|2000000000|"
    "zenflow,ways,plain,up_bytes|2000000000|zenflow,ways,plain,host,items,journal|0|"
    "zenflow,ways,speculation,down_bytes|2000000000|zenflow,ways,zenflow,down_bytes|2000000000|"
    "zenflow,ways,zenflow,up_bytes|500000000|zenflow,ways,zenflow,fits|ON|"
    "zenflow,ways,zenflow,gpu,items,weights|2000000000|zenflow,ways,zenflow,gpu,items,gradient_buckets|800000000|"
    "zenflow,ways,zenflow,gpu,items,device_gradients|2000000000|zenflow,ways,zenflow,gpu,items,device_state|400000000|"
    "zenflow,ways,zenflow,gpu,items,device_records|400000000|zenflow,ways,zenflow,gpu,items,selected_columns|200000000|"
    "zenflow,ways,zenflow,gpu,items,publishing_weights|2000000000|"
    "zenflow,ways,zenflow,host,items,state|3600000000|zenflow,ways,zenflow,host,items,gradients|2000000000|"
    "zenflow,ways,zenflow,host,items,device_arrays|400000000|zenflow,ways,zenflow,host,items,journal|0|"
    "zenflow,ways,zenflow,host,items,sums|4000000000|zenflow,ways,zenflow,host,items,host_weights|2000000000|"
    "zenflow,ways,zenflow,host,items,selected_image|600000000")
json(0 ${zenflow} ${rates} --backward 2 --forward 1 --zenflow 0.1 "${figures}")
json(0 ${zenflow} --zenflow 10% "zenflow,ways,zenflow,step_s||zenflow,window_s||zenflow,timeline||${figures}")
json(0 ${zenflow} "zenflow|")
set(row "on average +step +stall +down +up +GPU +host\n  plain, ratio 1 +3.40 s +400 ms +2.0 GB +2.0 GB +9.3 GB +30.0 GB  fits\n  speculation, ratio 1 +3.00 s +0 s .*\n  ZenFlow +")
shows(0 "${row}3.00 s +45.0 ns +2.0 GB +0.5 GB +14.3 GB +36.6 GB  fits\n" ${zenflow} ${rates} --backward 2 --forward 1 --zenflow 0.1)
# Without overlap the last step waits 120 ms for the sums, and 400 ms for the weights on their way up.
shows(0 "${row}3.13 s +130 ms +2.0 GB +0.5 GB +14.3 GB +34.6 GB  fits\n" ${zenflow} ${rates} --backward 2 --forward 1
      --zenflow 0.1 --no-overlap)
# In a window of one step every step waits: 80 ms and 400 ms.
shows(0 "${row}3.48 s +480 ms +2.0 GB +2.0 GB " ${zenflow} ${rates} --backward 2 --forward 1 --zenflow 0.1
      --update-interval 1 --no-overlap)
# Every fourth window the image of 600 MB is downloaded, then uploaded: 240 ms.
shows(0 "${row}3.02 s +15.0 ms +2.0 GB +0.5 GB .*A[ \n]+selection[ \n]+downloads[ \n]+the[ \n]+GPU's[ \n]+part" ${zenflow} ${rates} --backward 2 --forward 1
      --zenflow 0.1 --select-interval 13)
json(0 ${zenflow} --zenflow 0.1 --select-interval 16
     "zenflow,ways,zenflow,down_bytes|2037500000|zenflow,ways,zenflow,up_bytes|537500000|zenflow,select_interval|16|zenflow,selections_counted|ON")
shows(0 "Selections[ \n]+are[ \n]+not[ \n]+counted[ \n]+\\(--select-interval\\)" ${zenflow} ${rates} --backward 2 --forward 1
      --zenflow 0.1)
# At 40 GB/s the GPU reads 2 GB for the norm, and moves 2.2 GB for its step: of 44 bytes 20 are the step's, 8 records', 8
# gradients' that are gathered, and 8 weights' that go to their rows. In the last step weights are published in 90 ms.
shows(0 "\n  ZenFlow +3.13 s +22.5 ms .*\n  GPU step .* 420 ms\n" ${zenflow} --link 5 --gpu-rate 2e9 --backward 2 --forward 1
      --zenflow 0.1)
# The link is slower than backward, and begins when the sums are through: 480 ms after the first sums, 520 after others.
shows(0 "\n  ZenFlow +510 ms +360 ms " ${zenflow} ${rates} --backward 0.1 --forward 0.05 --zenflow 0.1)
# Of its step the host does 30 ms, 70, 30 and 30 while the GPU works; the last step waits for 20 more.
set(rates --gpu-rate 1e15 --link 100000)
shows(0 "\n  ZenFlow +155 ms +5.00 ms " ${zenflow} ${rates} --backward 0.1 --forward 0.05 --zenflow 0.1)
shows(0 [[

a window of 4 steps
  backward  \|##########     ###########     ##########     ###########       \| 400 ms
  down      \|       ===         =======            ===             ===       \| 160 ms
  CPU sums  \|#######   #########       ############   #############     #####\| 440 ms
  CPU step  \|       ###         #######            ###             #####     \| 180 ms
  up        \|       ====================================================     \| 500 ms
  GPU step  \|          #               #              #               #      \| 840 ns
  forward   \|          #####           #####          #####             #####\| 200 ms
            0             155 ms          310 ms          465 ms          620 ms
]] ${zenflow} ${rates} --backward 0.1 --forward 0.05 --zenflow 0.1)
# Backward waits for the host, which sums for longer than the GPU works; and the last step for weights, up in 8 s.
shows(0 "\n  ZenFlow +155 ms +105 ms .*\n  backward .* 360 ms\n.*\n  CPU sums .* 440 ms\n" ${zenflow} ${rates}
      --backward 0.03 --forward 0.02 --zenflow 0.1)
shows(0 "\n  ZenFlow +2.10 s +700 ms .*\n  up .* 8.00 s\n" ${zenflow} --gpu-rate 1e15 --link-down 100000 --link-up 0.25
      --backward 1 --forward 0.4 --zenflow 0.1)
# Nothing selected, and all: then gradients are downloaded all the same, and sums have their memory.
json(0 ${zenflow} ${rates} --backward 2 --forward 1 --zenflow 0
     "zenflow,selected_elems|0|zenflow,deferred_elems|500000000|zenflow,ways,zenflow,gpu,items,device_state|0|zenflow,ways,zenflow,gpu,items,selected_columns|0|zenflow,ways,zenflow,host,items,sums|4000000000|zenflow,ways,zenflow,host,items,selected_image|0")
json(0 ${zenflow} ${rates} --backward 2 --forward 1 --zenflow 1 --no-overlap
     "zenflow,deferred_elems|0|zenflow,ways,zenflow,stall_s|0|zenflow,ways,zenflow,down_bytes|2000000000|zenflow,ways,zenflow,up_bytes|0|zenflow,host_s|0|zenflow,ways,zenflow,gpu,items,device_state|4000000000|zenflow,ways,zenflow,host,items,sums|2000000000|zenflow,overlap|OFF")
# A plain step with half on the GPU: 100 ms after the norm. The CPU takes 250 ms, or 50.
set(rates --ratio 0.5 --journal 0 --gpu-rate 2.5e9 --link 100000 --backward 2 --forward 1 --zenflow 0.1)
shows(0 "\n  plain, ratio 0.5 +3.25 s +150 ms " ${small} ${rates} --cpu-rate 1e9)
shows(0 "\n  plain, ratio 0.5 +3.10 s +0 s " ${small} ${rates} --cpu-rate 5e9)
foreach(machine GH200 GB200 A100-40GB H100-SXM H200-SXM L40S RTX-4090 RTX-5090 MI300A)
    shows(0 "\n  ZenFlow +[0-9.]+ m?s .*\na window of 4 steps\n" qwen2.5-3b --gpus 2x${machine} --zenflow 0.1)
endforeach()
shows(0 "\n  speculation, ratio 1 +3.13 s +0 s " qwen2.5-3b --gpus RTX-3090 --ratio 1 --zenflow 0.1)
json(0 qwen2.5-3b --gpus MI300A --zenflow 0.1 --no-overlap
     "zenflow,ways,zenflow,down_bytes|0|zenflow,ways,zenflow,up_bytes|0|zenflow,ways,zenflow,host||zenflow,ways,zenflow,gpu,items,sums|12342788096")

# Without times: (2 * 9e8 + 2 * 10 * 2000 * 1000) operations for each of 2000 tokens, at half of the peak, and three times as
# many in backward.
shows(0 "\n  backward  22.1 ms .*\n  forward   7.36 ms " ${small} --flops 1e15)
# The published 0.082 s for 1e9 parameters are 28 B an element; records cost 15% of that.
shows(0 "\n  CPU step  12.20e9 elements/s   28 B an element at .*\n  records   .15% of a CPU step " phi-4 --gpus GH200)
shows(0 "\n  CPU step  12.20e9 elements/s   28 B an element at .*\n  records   none  " phi-4 --gpus GH200 --journal 0)

# Time, text, JSON and the best ratio agree about the journal: with none every update waits for the norm, as a plain step
# does, and more room never makes a step longer.
foreach(model qwen2.5-3b llama-3.1-8b)
    foreach(machine 2xGH200 4xH100-SXM 4xRTX-4090 4xMI300A)
        foreach(ratio --ratio=0.5 --ratio=1 --seq=4096) # the last: the best one
            set(before "")
            foreach(journal 0 0.5 1.5 3)
                run(${model} --gpus ${machine} ${ratio} --zenflow 0.1 --journal ${journal} --json)
                string(JSON step GET "${out}" step step_s)
                string(REGEX REPLACE "(\\.[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]).*" "\\1" step_ns "${step}") # without roundings
                string(JSON waits GET "${out}" speculation waits_for_norm)
                string(JSON plain GET "${out}" zenflow ways plain step_s)
                string(JSON speculation GET "${out}" zenflow ways speculation step_s)
                if(journal EQUAL 0)
                    if(NOT waits OR NOT step EQUAL plain OR speculation GREATER plain)
                        message(FATAL_ERROR "plan ${model} --gpus ${machine} ${ratio} --journal 0: a step takes ${step}, plain ${plain}, speculation ${speculation}, waits: ${waits}")
                    endif()
                elseif(waits OR NOT step EQUAL speculation OR step_ns GREATER before)
                    message(FATAL_ERROR "plan ${model} --gpus ${machine} ${ratio} --journal ${journal}: a step takes ${step}, with less ${before}, speculation ${speculation}, waits: ${waits}")
                endif()
                set(before ${step_ns})
            endforeach()
        endforeach()
    endforeach()
endforeach()
run(llama-3.1-8b --gpus 1xGH200 --ratio 1 --journal 0)
if(NOT out MATCHES "every update waits for the norm \\(--journal 0\\)" OR NOT out MATCHES "journal +0.0 GB  none: every update waits for the norm")
    message(FATAL_ERROR "--journal 0 is not said to wait:\n${out}")
endif()
shows(0 "budget of 0.5 B .*room for 24% of the[ \n]+blocks" llama-3.1-8b --gpus 1xGH200 --ratio 1 --journal 0.5)

# The best ratio leaves 3% of each memory free, and says so; a ratio that fits with less says that; and where none leaves
# as much, the best is of those that fit.
function(leaves_free)
    json(0 ${ARGN} "fits|ON")
    if(NOT out MATCHES "\"headroom\": 0.03, \"ratios_with_headroom\": {")
        message(FATAL_ERROR "adamant plan ${ARGN} --json: no headroom in\n${out}")
    endif()
    foreach(memory gpu host)
        string(JSON total GET "${out}" ${memory} total_bytes)
        string(JSON available GET "${out}" ${memory} available_bytes)
        math(EXPR most "${available} / 100 * 97")
        if(total GREATER most)
            message(FATAL_ERROR "adamant plan ${ARGN}: ${total} of ${available} bytes of the ${memory}'s memory leave less than 3%")
        endif()
    endforeach()
endfunction()
leaves_free(gpt-oss-20b --gpus GH200)
leaves_free(seed-oss-36b --gpus 2xGH200 --batch 2)
leaves_free(phi-4 --gpus 2xA100-80GB)
shows(0 "the best of those that leave 3% of each\n? +memory free: .*\nbest      ratio 0.868 with .* s, of those that leave 3% of each memory free\n"
      gpt-oss-20b --gpus GH200)
shows(0 "fits      yes; [^\n]* full;\n +this one leaves less than 3% of each memory free\n" gpt-oss-20b --gpus GH200 --ratio 0.857)
shows(0 "\nbest      ratio 1 with .* s; no ratio leaves 3% of each memory free\n" qwen2.5-3b --gpus GH200 --seq 40000)

# What does not fit says what would help; what it says is so.
function(helps_by pattern option tried step) # of which the number in the pattern helps, and step more does not
    run(${ARGN} ${option} ${tried})
    if(NOT status EQUAL 1 OR NOT out MATCHES "\nhelps [^\n]*(\n [^\n]*)*${pattern}")
        message(FATAL_ERROR "adamant plan ${ARGN} ${option} ${tried}: exit status ${status}, expected ${pattern}\n${out}${err}")
    endif()
    set(number "${CMAKE_MATCH_2}")
    leaves_free(${ARGN} ${option} ${number})
    math(EXPR more "${number} + ${step}")
    run(${ARGN} ${option} ${more})
    if(status EQUAL 0 AND NOT out MATCHES "no ratio leaves 3%")
        message(FATAL_ERROR "adamant plan ${ARGN}: advises ${option} ${number}, but ${more} helps, too:\n${out}")
    endif()
endfunction()
helps_by("\\(--seq ([0-9]+) or less\\)" --seq 40000 1024 llama-3.1-8b --gpus GH200)
helps_by("--batch ([0-9]+)" --batch 16 1 llama-3.1-8b --gpus GH200)
helps_by(" ([0-9]+) GPUs of this kind" --gpus 1 -1 gpt-oss-20b --gpu-memory 80GB --host-memory 128GB)
shows(1 "fits      NO; ratios from 0.857 to 1 fit; with smaller ones the GPU's memory is full\nhelps     a --ratio from 0.868 to 1, which leaves 3% of each memory free\n"
      gpt-oss-20b --gpus GH200 --ratio 0.5)
shows(0 "fits      yes; ratios from 0.857 to 1 fit" gpt-oss-20b --gpus GH200 --ratio 0.857)
shows(1 "fits      NO" gpt-oss-20b --gpus GH200 --ratio 0.856)
shows(1 "helps     a --ratio from 0.919 to 1, which leaves 3% of each memory free;\n +or leaving --device-records out;" llama-3-70b --gpus 4xGH200 --ratio 0.9
      --device-records)
shows(1 "no ratio fits: the host's memory is too small for all of them\nhelps     4 GPUs of this kind\n"
      gpt-oss-20b --gpus 1xH100-PCIe --host-memory 128GB)
shows(1 "helps     split master weights and moments in 8 bits \\(--state split_float32\\+quantized8\\);\n +or 2 GPUs"
      qwen3-30b-a3b --gpus GH200)
shows(1 "helps     moments in 16 bits \\(--exp-avg bfloat16 --exp-avg-sq bfloat16\\) with --journal 0;\n +or 2 GPUs"
      seed-oss-36b --gpus GH200)
json(0 seed-oss-36b --gpus GH200 --exp-avg bfloat16 --exp-avg-sq bfloat16 --journal 0 "fits|ON")
shows(0 "fits      yes; ratios from 0.277 to 1 fit" gpt-oss-20b --gpus 4xH100-PCIe --host-memory 128GB)
shows(1 "GPU's memory needs 0.886 or more, the host's 0.73 or less" llama-3-70b --gpus 2xGH200-144 --give-back)

# Sizes and counts, in capitals or not, with or without the B.
foreach(size 80GB 80gb 80G 80g "80 Gb" 80000MB)
    json(0 qwen2.5-3b --gpus 4 --gpu-memory ${size} --host-memory 500g "gpu,available_bytes|80000000000|host,available_bytes|500000000000")
endforeach()
foreach(size 80GiB 80gib 80Gi)
    json(0 qwen2.5-3b --gpus 4 --gpu-memory ${size} --host-memory 1T "gpu,available_bytes|85899345920")
endforeach()
foreach(count 7e9 7B 7b 7000m)
    json(0 --params ${count} --layers 30 --hidden 4000 --gpus 8xGH200 "model,params|7000000000")
endforeach()

# One memory for both; other machines and names; what is measured; shapes in a file.
json(0 llama-3.1-8b --gpus 4xMI300A "host||pinned_bytes|0|gpu,items,gradients|4015130624|machine,unified_memory|ON")
# 2,007,565,312 elements: 2 B of gradients and 2 B of weights each are not staged, 12 B of state are there once.
json(0 llama-3.1-8b --gpus 4xMI300A --ratio 1 "saved_by_sharing_bytes|8030261248")
json(0 llama-3.1-8b --gpus 4xMI300A --ratio 0 "saved_by_sharing_bytes|32121044992")
json(0 llama-3.1-8b --gpus 4xGH200 --ratio 1 "saved_by_sharing_bytes|0")
shows(0 "\n +saved by sharing +32.1 GB  which" llama-3.1-8b --gpus 4xMI300A --ratio 0)
shows(0 "memory, of CPU and GPU in one, for each GPU\n.*\nrates.*link +none +CPU and GPU use one memory" qwen2.5-3b
      --gpus MI300A)
shows(1 "helps " llama-3.1-8b --gpus MI300A)
foreach(machine GH200-144 gh200_96 GB200 H100-PCIe 8xh100sxm "2 x H200-NVL" 3*H200-SXM A100-80GB 2xA100-SXM4-40GB B200
        2xL40S "RTX A6000" 8xRTX-4090)
    shows(0 "fits      yes; .*\nbest " qwen2.5-3b --gpus ${machine})
endforeach()
foreach(name "Meta-Llama/Meta_Llama 3 70B-Instruct" LLAMA-3.3-70b llama3-70b)
    shows(0 "^model     Llama-3-70B: 70,553,706,496 parameters in 723 tensors" ${name} --gpus 4xGH200)
endforeach()
shows(0 "Qwen3-30B-A3B +30,532,122,624 parameters .*GB200 +199 GB, host 240 GB" --list)
# Capacities are the driver's, and say so.
foreach(line "H100-SXM 81559" "H100-PCIe 81559" "A100-80GB 81920" "A100-40GB 40960" "H200 143771" "GH200 97871" "B200 183359")
    string(REPLACE " " ";" line "${line}")
    list(GET line 0 machine)
    list(GET line 1 mib)
    math(EXPR bytes "${mib} << 20")
    json(0 qwen2.5-3b --gpus 4x${machine} "gpu,available_bytes|${bytes}")
    string(JSON source GET "${out}" machine gpu_bytes source)
    if(NOT source MATCHES "nvidia-smi shows for NVIDIA ")
        message(FATAL_ERROR "the memory of ${machine} is from ${source}")
    endif()
endforeach()
if(NOT EMULATOR) # which takes its time
    shows(0 "\n  CPU step .* B an element at .*measured[ \n]+here \\(" qwen2.5-3b --gpus GH200 --measure)
endif()
set(file ${FOLDER}/plan_shapes.txt)
file(WRITE ${file} "# a model\nembed.weight [1000, 64]\n\nlayers.0.w (64x256)\nlayers.1.w\t64 256 # the other\nnorm 64\n")
json(0 --shapes ${file} --gpus GH200 --hidden 64 --vocab 1000 "model,params|96832|model,tensors|4|model,layers|2|gpu,items,logits|49152000")
shows(0 "activations +0.0 GB  not known: give --hidden" --gpus GH200 --shapes ${file})
# Of 64 and 256 columns 6.4 and 25.6 are 6 and 26, and the norm is a vector; a small share is one column.
string(CONCAT figures "zenflow,selected_elems|9392|zenflow,deferred_elems|87440|"
    "zenflow,ways,zenflow,gpu,items,device_records|112704|zenflow,ways,zenflow,gpu,items,selected_columns|37440|")
# The norm's param is downloaded, but not accumulated, and uploaded by itself: matrices have 96768 elements.
string(APPEND figures
    "zenflow,ways,zenflow,down_bytes|193664|zenflow,ways,zenflow,up_bytes|48384|"
    "zenflow,ways,zenflow,gpu,items,device_gradients|193664|zenflow,ways,zenflow,gpu,items,publishing_weights|193536|"
    "zenflow,ways,zenflow,host,items,gradients|193664|zenflow,ways,zenflow,host,items,sums|774144|"
    "zenflow,ways,zenflow,host,items,device_arrays|131488|zenflow,ways,zenflow,host,items,host_weights|193536|"
    "zenflow,ways,zenflow,host,items,selected_image|150144")
json(0 --shapes ${file} --gpus GH200 --zenflow 0.1 "${figures}")
json(0 --shapes ${file} --gpus GH200 --zenflow 0.0001 "zenflow,selected_elems|1192")
json(0 --shapes ${file} --gpus GH200 --zenflow 0 "zenflow,selected_elems|64")

# What cannot be, or is not understood.
fails("^adamant: cannot plan: no machine is given" phi-4)
fails("no model is given" --gpus GH200)
fails("no model is known by the name 'llama'; did you mean Llama-3.1-8B or Llama-3-70B\\? Known are Qwen2.5-3B, Llama-3.1-8B, .*Describe another by --params" llama --gpus GH200)
fails("by the name 'mixtral'; known are Qwen2.5-3B, " mixtral --gpus GH200)
fails("by the name 'llama3.18b'; did you mean Llama-3.1-8B\\?" llama3.18b --gpus GH200)
fails("two models are named, 'phi-4' and 'qwen3-14b'" phi-4 --gpus GH200 qwen3-14b)
fails("cannot plan for two models: 'phi-4' and --params, --layers" phi-4 --params 7B --layers 2 --gpus GH200)
fails("--layers is missing" --params 7B --gpus GH200)
fails("--params is 100, but 10 layers, and an embedding" --params 100 --layers 10 --hidden 8 --vocab 9 --gpus GH200)
fails("--params is 'inf', but must be a number from 1 to 1e15" --params inf --layers 1 --hidden 1 --gpus GH200)
fails("--active-params is 8,000,000,000, but the model has 7,000,000,000" --params 7B --layers 2 --hidden 64 --active-params 8B
      --gpus GH200)
fails("--gpus is '4xA100', which names no machine that is known; did you mean A100-40GB, A100-80GB or A100-80GB-PCIe\\? It is"
      phi-4 --gpus 4xA100)
foreach(machine 8xH100 H100)
    fails("did you mean H100-[^?]* or [A-Z0-9-]+\\? It is" phi-4 --gpus ${machine})
endforeach()
fails("--gpus is '4xTPU', which names no machine that is known; it is .*GH200-96, " phi-4 --gpus 4xTPU)
fails("but there are from 1 to 65536 GPUs" phi-4 --gpus 0xGH200)
fails("--host-memory is missing: --gpus is '4', which names no machine" phi-4 --gpus 4 --gpu-memory 80GB)
fails("--gpu-memory is '80', but must be a size with its unit" phi-4 --gpus GH200 --gpu-memory 80)
fails("--host-memory is given, but MI300A has one memory" phi-4 --gpus MI300A --host-memory 9GB)
fails("--ratio is '1.5', but must be a share from 0 to 1" phi-4 --gpus GH200 --ratio 1.5)
fails("--ratio is 'nan'" phi-4 --gpus GH200 --ratio nan)
fails("--exp-avg is 'float16', but must be float32, bfloat16 or quantized8\n$" phi-4 --gpus GH200 --exp-avg float16)
fails("--layers is '100000000', but must be a whole number from 1 to 100000" --params 1e9 --layers 100000000 --hidden 4096
      --gpus GH200)
fails("--utilisation is '1e-9', but must be a share from 1e-6 to 1" phi-4 --gpus GH200 --utilisation 1e-9)
foreach(zero 0 0GB 0.0 "0 GiB")
    json(0 phi-4 --gpus 8xGH200 --gpu-reserve "${zero}" "fits|ON")
endforeach()
fails("--gpu-reserve is '0x', but must be a size" phi-4 --gpus GH200 --gpu-reserve 0x)
fails("--gpu-reserve is '80', but must be a size" phi-4 --gpus GH200 --gpu-reserve 80)
fails("adamant has no step for these types.*or both quantized8" phi-4 --gpus GH200 --exp-avg quantized8)
fails("--param is 'quantized8', but must be float32, bfloat16 or float16\n$" phi-4 --gpus GH200 --param quantized8)
fails("--state is 'int8', but must be float32, split_float32, bfloat16, quantized8, " phi-4 --gpus GH200 --state int8)
fails("--param is 'int8', but must be float32, bfloat16 or float16\n$" phi-4 --gpus GH200 --param int8)
fails("--link is '0', but must be a rate in GB/s" phi-4 --gpus GH200 --link 0)
fails("--cpu-rate is '12', but must be elements a second" phi-4 --gpus GH200 --cpu-rate 12)
fails("--zenflow is '1.1', but must be a share from 0 to 1" phi-4 --gpus GH200 --zenflow 1.1)
fails("--update-interval is '0', but must be a whole number from 1 to 1000" phi-4 --gpus GH200 --zenflow 0.1
      --update-interval 0)
fails("--select-interval is 'x', but must be a whole number" phi-4 --gpus GH200 --zenflow 0.1 --select-interval x)
foreach(option "--update-interval=4" "--select-interval=4" --no-overlap)
    string(REGEX REPLACE "=.*" "" name ${option})
    fails("${name} is given, but says something of ZenFlow only; --zenflow 0.1 asks for that" phi-4 --gpus GH200 ${option})
endforeach()
fails("--measure and --cpu-rate are both given" phi-4 --gpus GH200 --measure --cpu-rate 1e9)
fails("more than 2\\^58 bytes" phi-4 --gpus GH200 --batch 1000000 --seq 100000000)
fails("'--jsn' is not understood" phi-4 --gpus GH200 --jsn)
fails("no_such.txt cannot be opened: No such file" --shapes ${FOLDER}/no_such.txt --gpus GH200)
file(WRITE ${file} "a 64\nb 64 x 2\n")
fails("line 2 of .* has 'x' for a dimension" --shapes ${file} --gpus GH200)
file(WRITE ${file} "a 64\n# b\na 64\n")
fails("line 3 of .* has the tensor 'a', which line 1 has, too" --shapes ${file} --gpus GH200)
file(WRITE ${file} "a\n")
fails("line 1 of .* has no dimensions" --shapes ${file} --gpus GH200)
file(WRITE ${file} "# nothing\n")
fails("has no tensors" --shapes ${file} --gpus GH200)

execute_process(COMMAND ${EMULATOR} ${ADAMANT} plan phi-4 --gpus GH200 RESULT_VARIABLE status ERROR_VARIABLE err
                OUTPUT_FILE /dev/full)
if(NOT status EQUAL 2 OR NOT err MATCHES "could not be written")
    message(FATAL_ERROR "adamant plan on a full disk: exit status ${status}\n${err}")
endif()
