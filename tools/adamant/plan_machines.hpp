// SPDX-License-Identifier: Apache-2.0
// The machines that `adamant plan` knows. All figures are for one GPU and its share of the host.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cli {

// A number and its source. 0: unknown.
struct figure {
    double value = 0;
    std::string source = {};
};

struct gpu_host {
    std::string name;
    bool unified = false; // GPU and host use one memory, which is the GPU's; nothing crosses a link
    figure gpu_bytes;
    figure host_bytes;           // for each GPU
    figure gpu_bytes_per_s;      // of the GPU's memory
    figure cpu_step_bytes_per_s; // moved by an optimizer step on this GPU's CPU cores
    figure down_bytes_per_s;     // from the GPU to the host, in practice
    figure up_bytes_per_s;
    figure flops; // peak of dense 16-bit matrix products
};

struct gpu_count {
    std::size_t gpus = 1;
    gpu_host machine;
};

// Reads "4xGH200", "GH200-144", or a number alone for GPUs that other options describe: those have no name. Throws
// usage_error with the known names.
gpu_count parse_gpus(std::string const& text);

std::vector<std::string> machine_names();

std::string list_of_machines();

} // namespace cli
