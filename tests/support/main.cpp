// SPDX-License-Identifier: Apache-2.0
// Runs the tests for the tier that ADAMANT_ISA names, and says so. Exit status 77, which ctest shows as skipped, where
// this CPU does not have it.

#define CATCH_CONFIG_RUNNER
#include "catch.hpp"

int main(int argc, char** argv)
{
    char const* const variable = std::getenv("ADAMANT_ISA");
    if (variable != nullptr && *variable != '\0' && !adamant::is_available(adamant::parse_isa(variable))) {
        std::printf("skipped: this CPU cannot run %s\n", variable);
        return 77;
    }
    std::printf("tier %s\n", name(test::tier()).data());
    return Catch::Session().run(argc, argv);
}
