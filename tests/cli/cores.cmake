# SPDX-License-Identifier: Apache-2.0
# `adamant cores`: what it prints for machines that are described to it, and what it says where it cannot.
foreach(variable LOCAL_RANK LOCAL_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE MPI_LOCALRANKID
        MPI_LOCALNRANKS SLURM_LOCALID SLURM_STEP_TASKS_PER_NODE SLURM_TASKS_PER_NODE HWLOC_XMLFILE HWLOC_SYNTHETIC
        HWLOC_FSROOT)
    unset(ENV{${variable}})
endforeach()
set(ENV{HWLOC_COMPONENTS} -pci) # whose library leaks, which a sanitizer takes for ours

include(${CMAKE_CURRENT_LIST_DIR}/tool.cmake)
function(run)
    execute_process(COMMAND ${EMULATOR} ${ADAMANT} cores ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out
                    ERROR_VARIABLE err)
    if(NOT out MATCHES "^{") # JSON
        is_readable("${out}")
    endif()
    is_singular("${err}")
    set(status "${status}" PARENT_SCOPE)
    set(out "${out}" PARENT_SCOPE)
    set(err "${err}" PARENT_SCOPE)
endfunction()

# The whole output.
function(prints expected)
    run(${ARGN})
    if(NOT status EQUAL 0 OR NOT out STREQUAL expected OR NOT err STREQUAL "")
        message(FATAL_ERROR "adamant cores ${ARGN}: exit status ${status}\n${out}${err}expected\n${expected}")
    endif()
    set(out "${out}" PARENT_SCOPE)
endfunction()

# Part of the output.
function(shows pattern)
    run(${ARGN})
    if(NOT status EQUAL 0 OR NOT out MATCHES "${pattern}")
        message(FATAL_ERROR "adamant cores ${ARGN}: exit status ${status}, expected '${pattern}'\n${out}${err}")
    endif()
endfunction()

# An error: exit status 2, nothing on stdout.
function(fails pattern)
    run(${ARGN})
    if(NOT status EQUAL 2 OR NOT out STREQUAL "" OR NOT err MATCHES "${pattern}")
        message(FATAL_ERROR "adamant cores ${ARGN}: exit status ${status}, expected 2 and '${pattern}'\n${out}${err}")
    endif()
endfunction()

run()
if(err MATCHES "compiled without hwloc")
    fails("install hwloc")
    message("SKIPPED: no hwloc")
    return()
endif()
if(NOT status EQUAL 0)
    message(FATAL_ERROR "adamant cores: exit status ${status}\n${out}${err}")
endif()
shows("^machine  this machine\n" --perc 0.5)

# cpu_quota: a share keeps within it, a number does not, and both are told.
shows("allowed  all PUs\n         quota 5 of 16 CPUs \\(--quota\\)\nranks " --topology "pack:1 [numa] core:16 pu:1" --quota 5)
shows("the CPU quota is 5 of 16 CPUs, 2.5 for each rank" --topology "pack:1 [numa] core:16 pu:1" --quota 5 --ranks 2 --json)
shows("^{\"ranks\":.*\"adam_pus\":\"6-7\".*,\"cpu_quota\":5,\"cpu_quota_source\":\"--quota\"}\n$" --topology "pack:1 [numa] core:16 pu:1" --quota 5
      --ranks 2 --json)
shows("5 of 16 CPUs, less than the optimizer's 9 threads" --topology "pack:1 [numa] core:16 pu:1" --quota 5 --count 9 --json)
foreach(wrong 0 -1 x 2.5x)
    fails("--quota is '${wrong}', but must be a number of CPUs" --topology "pu:4" --quota "${wrong}")
endforeach()

# A mask that Slurm gave, on two sockets of 24 cores: for the program that reads it,
set(sockets --topology "pack:2 [numa] core:24 pu:1")
set(slurm_mask --allowed "0,4-11,21-26,30-46")
string(CONCAT expected
    [[{"ranks":[]]
    [[{"rank":0,"adam_pus":"5-11,21-23","host_pus":"0,4","numa_nodes":"0","why":"]]
    [[rank 0 of 2 has 12 cores, its share of 32: 10 for the optimizer in NUMA node 0, 2 for the host; one PU per core"}, ]]
    [[{"rank":1,"adam_pus":"31-46","host_pus":"24-26,30","numa_nodes":"1","why":"]]
    [[rank 1 of 2 has 20 cores, its share of 32: 16 for the optimizer in NUMA node 1, 4 for the host; one PU per core"}]]
    "]}\n")
prints("${expected}" ${sockets} ${slurm_mask} --ranks 2 --json)
foreach(rank 0 1)
    foreach(key adam_pus host_pus numa_nodes why)
        string(JSON ${key}_${rank} GET "${out}" ranks ${rank} ${key})
    endforeach()
endforeach()
string(JSON count LENGTH "${out}" ranks)
if(NOT count EQUAL 2 OR NOT adam_pus_0 STREQUAL "5-11,21-23" OR NOT host_pus_1 STREQUAL "24-26,30"
   OR NOT numa_nodes_1 STREQUAL "1" OR NOT why_0 MATCHES "^rank 0 of 2 has 12 cores")
    message(FATAL_ERROR "cores --json: ${count} ranks, ${adam_pus_0}, ${host_pus_1}, ${numa_nodes_1}, ${why_0}\n${out}")
endif()
# for the person who asked for it,
prints([[
machine  pack:2 [numa] core:24 pu:1
         2 packages, 2 NUMA nodes, 48 cores, 48 PUs
allowed  PUs 0,4-11,21-26,30-46 (32 of 48)
ranks    2, as --ranks says; unequal: of 12 to 20 cores

package 0, NUMA node 0: DRAM
  PU 0-23   0h -- -- -- 0h 0A 0A 0A 0A 0A 0A 0A -- -- -- -- -- -- -- -- -- 0A 0A 0A

package 1, NUMA node 1: DRAM
  PU 24-47  1h 1h 1h -- -- -- 1h 1A 1A 1A 1A 1A 1A 1A 1A 1A 1A 1A 1A 1A 1A 1A 1A --

0A optimizer (Adam) of rank 0   0h host framework of rank 0   -- not allowed

rank 0  optimizer on PUs 5-11,21-23   host on PUs 0,4        memory of NUMA node 0
        12 cores, its share of 32: 10 for the optimizer in NUMA node 0, 2 for the host;
        one PU per core
rank 1  optimizer on PUs 31-46        host on PUs 24-26,30   memory of NUMA node 1
        20 cores, its share of 32: 16 for the optimizer in NUMA node 1, 4 for the host;
        one PU per core
]] ${sockets} ${slurm_mask} --ranks=2)
# and for one of its ranks.
shows("PU 0-23   :: -- .*PU 24-47  1h .*\n1A optimizer .*:: another rank's .*\n\nrank 1 " ${sockets} ${slurm_mask} --ranks 2
      --rank 1)
shows([[^{"ranks":\[{"rank":1,[^}]*}\]}.$]] ${sockets} ${slurm_mask} --ranks 2 --rank 1 --json)

# Rows end where caches do; threads of a core are numbered one after the other; some cores are left over.
prints([[
machine  pack:1 [numa(memory=137438953472)] l3:4 core:8 pu:2
         1 package, 1 NUMA node, 32 cores, 64 PUs
allowed  all PUs
ranks    1, for neither --ranks nor a launcher's variables say more

package 0, NUMA node 0: 128 GiB of DRAM, 4 L3 of 16 MiB
  PU 0-31   .. .. 0h 0h 0h 0h 0h 0A   0A 0A 0A 0A 0A 0A 0A 0A
  PU 32-63  0A 0A 0A 0A 0A 0A .. ..   .. .. .. .. .. .. .. ..

0A optimizer (Adam) of rank 0   0h host framework of rank 0   .. usable, given to no rank
gap: another L3   a cell is a core with all its PUs   0-6:2 is 0,2,4,6

rank 0  optimizer on PUs 14-42:2   host on PUs 4-12:2   memory of NUMA node 0
        20 cores, all that are in the list: 15 for the optimizer in NUMA node 0, 5 for the host;
        one PU per core
]] --topology "pack:1 [numa(memory=137438953472)] l3:4 core:8 pu:2" --list core:2-21 --reserve 25%)

shows("optimizer on PUs 10-47 " ${sockets} --perc 80%)

# What nobody has, and ranks that are not alike.
shows("ranks    2, as --ranks says\nidle     1 of 13 cores: PU 12, in NUMA node 1, where no rank is\n\n"
      --topology "pack:2 [numa] core:12 pu:1" --allowed 0-12 --ranks 2)
shows("ranks    4, [^\n]*; unequal: of 4 to 8 cores\n\n" --topology "pack:2 [numa] core:16 pu:1" --allowed 0-7,16-31
      --ranks 4)
shows("ranks    3, as --ranks says\n\n" ${sockets} --ranks 3 --list 0-15 --reserve 1) # give or take a core

# Many small packages that look alike.
prints([[
machine  pack:20 [numa] core:2 pu:1
         20 packages, 20 NUMA nodes, 40 cores, 40 PUs
allowed  PUs 0-36,38-39 (39 of 40)
ranks    2, as --ranks says

packages 0-19, NUMA nodes 0-19, 2 cores each: DRAM
  PU 0-9    0h 0h | 0h 0h | 0A 0A | 0A 0A | 0A 0A
  PU 10-19  0A 0A | 0A 0A | 0A 0A | 0A 0A | 0A 0A
  PU 20-29  1h 1h | 1h 1A | 1A 1A | 1A 1A | 1A 1A
  PU 30-39  1A 1A | 1A 1A | 1A 1A | 1h -- | 1A 1A

0A optimizer (Adam) of rank 0   0h host framework of rank 0   -- not allowed
|: another package

rank 0  optimizer on PUs 4-19          host on PUs 0-3        memory of NUMA nodes 2-9
        20 cores, its share of 39: 16 for the optimizer in NUMA nodes 2-9, 4 for the host;
        one PU per core
rank 1  optimizer on PUs 23-35,38-39   host on PUs 20-22,36   memory of NUMA nodes 11-17,19
        19 cores, its share of 39: 15 for the optimizer in NUMA nodes 11-17,19, 4 for the host;
        one PU per core
]] --topology "pack:20 [numa] core:2 pu:1" --ranks 2 --allowed 0-36,38-39)
shows([[
packages 0-63, NUMA nodes 0-63, 1 core each: DRAM
  PU 0-31    0h 0h 0h 0A 0A 0A 0A 0A 0A 0A 0A 0A 0A 0A 0A 0A
  PU 32-63   1h 1h 1h 1A 1A 1A 1A 1A 1A 1A 1A 1A 1A 1A 1A 1A
  PU 64-95   2h 2h 2h 2A 2A 2A 2A 2A 2A 2A 2A 2A 2A 2A 2A 2A
  PU 96-127  3h 3h 3h 3A 3A 3A 3A 3A 3A 3A 3A 3A 3A 3A 3A 3A

0A optimizer [^|]*$]] --topology "pack:64 [numa] core:1 pu:2" --ranks 4)
shows("package 7, NUMA node 7: DRAM\n" --topology "pack:8 [numa] core:1 pu:1") # that few are drawn one by one

# The machines that descriptions cannot describe.
set(at ${CMAKE_CURRENT_LIST_DIR}/../topology/machines)
shows([[
  PU 0-19  0h 0h 0A 0A 0A 0A  0A 0A 0A 0A  0A 0A -- --
  speed     1  1  1  1  1  1   0  0  0  0   0  0  0  0
]] --topology ${at}/20em64t-hybrid-1p6c2t-2ca4co1t.xml --fast host --allowed core:0-11 --smt)
shows([[
package 1, NUMA node 0 \(as above\), L3 of 4 MiB
  PU 1               0A
.*
offline PUs, of these or of other cores
  PU 2,5,7-11,13-14  xx xx xx xx xx xx xx xx xx
.*  xx offline]] --topology ${at}/16em64t-4s2c2t-offlines.xml --count 5)
shows([[NUMA node 1: 979 MiB of DRAM, L3 of 16 MiB
  and NUMA node 4: 512 MiB of HBM
  and NUMA node 6: 384 MiB of NVM
  PU 2-3 ]] --topology ${at}/fakeheteromemtiers.xml)

# Two packages, with memory and a GPU at the first one only.
function(sets result pus nodes)
    set(${result} "cpuset=\"${pus}\" complete_cpuset=\"${pus}\" nodeset=\"${nodes}\" complete_nodeset=\"${nodes}\""
        PARENT_SCOPE)
endfunction()
string(CONCAT xml "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
       "<topology version=\"2.0\">\n")
sets(all 0xf 0x1)
string(APPEND xml "<object type=\"Machine\" os_index=\"0\" ${all} allowed_cpuset=\"0xf\" allowed_nodeset=\"0x1\" "
                  "gp_index=\"1\">\n")
foreach(package 0 1)
    math(EXPR pus "3 << ${package} * 2" OUTPUT_FORMAT HEXADECIMAL)
    math(EXPR node "1 - ${package}" OUTPUT_FORMAT HEXADECIMAL)
    sets(own ${pus} ${node})
    string(APPEND xml "<object type=\"Package\" os_index=\"${package}\" ${own} gp_index=\"1${package}\">\n")
    if(package EQUAL 0)
        string(APPEND xml "<object type=\"NUMANode\" os_index=\"0\" ${own} gp_index=\"2\" "
                          "local_memory=\"8589934592\"/>\n")
    endif()
    foreach(core 0 1)
        math(EXPR pu "${package} * 2 + ${core}")
        math(EXPR pus "1 << ${pu}" OUTPUT_FORMAT HEXADECIMAL)
        sets(own ${pus} ${node})
        string(APPEND xml "<object type=\"Core\" os_index=\"${core}\" ${own} gp_index=\"2${pu}\">"
                          "<object type=\"PU\" os_index=\"${pu}\" ${own} gp_index=\"3${pu}\"/></object>\n")
    endforeach()
    if(package EQUAL 0)
        string(APPEND xml "<object type=\"Bridge\" gp_index=\"40\" bridge_type=\"0-1\" depth=\"0\" "
                          "bridge_pci=\"0000:[00-0f]\">"
                          "<object type=\"PCIDev\" gp_index=\"41\" pci_busid=\"0000:01:00.0\" "
                          "pci_type=\"0302 [10de:2330] [10de:16c1] a1\" pci_link_speed=\"0.0\"/></object>\n")
    endif()
    string(APPEND xml "</object>\n")
endforeach()
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/cores_test.xml "${xml}</object>\n</topology>\n")
shows([[
package 0, NUMA node 0: 8 GiB of DRAM
  and GPU 0: 0000:01:00.0 10de:2330
  PU 0-1  0A 0A

package 1, no local memory
  PU 2-3  0h 0A
.*
rank 0  optimizer on PUs 0-1,3   host on PU 2   memory of NUMA node 0
        4 cores, all that are allowed: 3 for the optimizer in NUMA node 0 \(1 of them with no
        local memory\), 1 for the host; 2 of 3 cores near its GPU 0000:01:00.0; one PU per core
]] --topology ${CMAKE_CURRENT_BINARY_DIR}/cores_test.xml --gpu 0)
string(REPLACE "version=\"2.0\"" "version=\"9.1\"" xml "${xml}")
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/cores_test.xml "${xml}</object>\n</topology>\n")
fails("cores_test.xml\" is XML of version 9.1, but the hwloc of this program is version" --topology
      ${CMAKE_CURRENT_BINARY_DIR}/cores_test.xml)
file(REMOVE ${CMAKE_CURRENT_BINARY_DIR}/cores_test.xml)

# Ranks: from their launcher, bound by it, more than a digit has, more than one to a core.
set(ENV{LOCAL_RANK} 1)
set(ENV{LOCAL_WORLD_SIZE} 2)
shows("ranks    2, as LOCAL_RANK and LOCAL_WORLD_SIZE say; this process is rank 1\n" ${sockets})
shows("ranks    3, as --ranks says; unequal: of 12 to 24 cores\n" ${sockets} --ranks 3)
set(ENV{LOCAL_WORLD_SIZE} 1)
fails("LOCAL_RANK is 1 but LOCAL_WORLD_SIZE says that this host has 1 rank; ranks count from 0" ${sockets})
unset(ENV{LOCAL_RANK})
unset(ENV{LOCAL_WORLD_SIZE})
set(ENV{OMPI_COMM_WORLD_LOCAL_RANK} 0)
fails("OMPI_COMM_WORLD_LOCAL_SIZE does not say how many ranks this host has; set it, or give --ranks\n" ${sockets})
unset(ENV{OMPI_COMM_WORLD_LOCAL_RANK})
shows("PU 0-23   -- -- .* -- 1h .*PU 24-47  -- -- 0h 0A .*bound to from outside" ${sockets} --ranks 2 --allowed 26-31
      --allowed 0x3c0000)
shows("  9h  9A  9A 10h 10A 10A 11h 11A 11A\n" --topology "pack:1 [numa] core:36 pu:1" --ranks 12)
shows("  && &&\n.*&& shared by several ranks" --topology "pack:1 [numa] core:2 pu:2" --ranks 2 --allowed 0,2 --allowed 1,3)

# What cannot be had or is not understood; the lines with the caret arrive as they are.
fails("^adamant: \"4-1\" is not [^\n]*runs backwards[^\n]*\n  4-1\n  \\^\n$" ${sockets} --list 4-1)
fails("there is no NUMA node 7[^\n]*\n  0\\+numa:7\n    \\^\n$" ${sockets} --allowed 0+numa:7)
fails("cannot divide 48 cores .* among 49 ranks" ${sockets} --ranks 49)
fails("cannot divide 1 core .* among 2 ranks" --topology "core:1 pu:2" --ranks 2)
fails("--rank is 1, but the number of ranks is 1, as --ranks says" ${sockets} --ranks 1 --rank 1)
fails("ask for at most 47" ${sockets} --count 48)
fails("^adamant: --count is 0" ${sockets} --count 0)
fails("^adamant: --reserve is 0" ${sockets} --reserve 0)
fails("PUs 48-50 of the list 47-50 may not be used" ${sockets} --list 47-50)
fails("--list is '0x0', which has no PU" ${sockets} --list 0x0)
fails("--perc and --reserve are both given" ${sockets} --perc=0.5 --reserve 2)
fails("--perc is 'much', but must be a share" ${sockets} --perc much)
fails("^adamant: --perc is 1.1, but must be a share: above 0 and at most 1\n" ${sockets} --perc 110%)
fails("^adamant: --reserve is 1, but must be a share: above 0 and below 1\n" ${sockets} --reserve 100%)
fails("--reserve is '-1', but must be a number" ${sockets} --reserve -1)
fails("--smt is 'two', but must be one or all" ${sockets} --smt two)
fails("--fast is 'me', but must be optimizer or host" ${sockets} --fast me)
fails("has no GPU" ${sockets} --gpu 0)
fails("--rank is 2, but the number of ranks is 2" ${sockets} --ranks 2 --rank 2)
fails("--ranks is given more than once" ${sockets} --ranks 2 --ranks 3)
fails("cannot open .*No such file" --topology no_such.xml)
fails("is not a synthetic topology" --topology "pack:none")
fails("bindings can only be tested on the machine" ${sockets} --bind-test)
fails("'--jsn' is not understood" ${sockets} --jsn)

execute_process(COMMAND ${EMULATOR} ${ADAMANT} cores ${sockets} RESULT_VARIABLE status ERROR_VARIABLE err
                OUTPUT_FILE /dev/full)
if(status EQUAL 0 OR NOT err MATCHES "could not be written")
    message(FATAL_ERROR "adamant cores on a full disk: exit status ${status}\n${err}")
endif()
