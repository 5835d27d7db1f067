// SPDX-License-Identifier: Apache-2.0
// `adamant verify` by itself, for builds without the rest of the command.

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "../../tools/adamant/arguments.hpp"
#include "../../tools/adamant/verify.hpp"

int main(int argc, char** argv)
{
    try {
        cli::command const verify{
            "verify", "", "", "", {{"--isa", "ISA", ""}, {"--threads", "N", ""}, {"--json", "", ""}}, "", cli::verify};
        cli::arguments options(verify, std::vector<std::string>(argv + 1, argv + argc));
        return cli::verify(options);
    } catch (std::exception const& error) {
        std::fprintf(stderr, "verify: %s\n", error.what());
        return 2;
    }
}
