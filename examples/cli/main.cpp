// SPDX-License-Identifier: Apache-2.0
// The command-line tool `adamant`.

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include <adamant/core/abi.hpp>

#include "arguments.hpp"
#include "verify.hpp"

namespace {

constexpr char const* usage = R"(adamant: the optimizer step of offloaded training, on this machine

  adamant verify [--isa NAME] [--threads N] [--json]
      Runs a fixed trajectory of 200 steps over every combination of element types and compares the bits with
      those of every other machine. Exit status 0: the same; 1: not, and the first combination that differs is named.
        --isa      automatic (default; obeys ADAMANT_ISA), scalar, generic, avx2, avx512, avx512_bf16
        --threads  0 (default): one per hardware thread that this process may use
        --json     the result as one JSON object

  adamant --version
  adamant --help
)";

int run(int argc, char** argv)
{
    std::string_view const command = argc > 1 ? argv[1] : "--help";
    if (command == "--help" || command == "-h" || command == "help") {
        std::fputs(usage, stdout);
        return argc > 1 ? 0 : 2;
    }
    if (command == "--version") {
        std::printf("adamant %d.%d.%d\n", ADAMANT_VERSION_MAJOR, ADAMANT_VERSION_MINOR, ADAMANT_VERSION_PATCH);
        return 0;
    }
    cli::arguments arguments(argc, argv, 2);
    if (arguments.flag("--help")) {
        std::fputs(usage, stdout);
        return 0;
    }
    if (command == "verify")
        return cli::verify(arguments);
    throw cli::usage_error("there is no command '" + std::string(command) + "'; try adamant --help");
}

} // namespace

int main(int argc, char** argv)
{
    try {
        int const status = run(argc, argv);
        if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
            throw std::runtime_error("the output could not be written; is the disk full?");
        return status;
    } catch (std::exception const& error) {
        std::string_view const text = error.what();
        std::fprintf(stderr, "%s%s\n", text.starts_with("adamant: ") ? "" : "adamant: ", error.what());
        return 2;
    }
}
