// SPDX-License-Identifier: Apache-2.0
// The main function of the command-line tool `adamant`.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <adamant/cores.hpp>
#include <adamant/version.hpp>

#include "arguments.hpp"
#include "commands.hpp"
#include "for_people.hpp"
#include "suggestion.hpp"

ADAMANT_KEEP_LAUNCH_MASK

namespace {

std::string version()
{
    return "adamant " + std::to_string(ADAMANT_VERSION_MAJOR) + "." + std::to_string(ADAMANT_VERSION_MINOR) + "." +
           std::to_string(ADAMANT_VERSION_PATCH) + "\n";
}

cli::command const& command_of(std::string const& name)
{
    if (cli::command const* const known = cli::find_command(name))
        return *known;
    std::vector<std::pair<std::string, std::string>> names;
    for (std::string const& known : cli::command_names())
        names.emplace_back(known, known);
    std::string const suggestion = cli::did_you_mean(name, names);
    throw cli::usage_error("there is no command '" + name + "'" + (suggestion.empty() ? ";" : suggestion) +
                           " try adamant --help");
}

int say(std::string const& text)
{
    std::fputs(text.c_str(), stdout);
    return 0;
}

int run(std::vector<std::string> words)
{
    auto const is_help = [](std::string const& word) { return word == "--help" || word == "-h"; };
    if (words.empty()) {
        say(cli::overview());
        return 2;
    }
    std::string const first = words.front();
    words.erase(words.begin());
    if (first == "--complete") // called by the shell's completion
        return say(cli::completions(std::move(words)));
    bool const wants_help = is_help(first) || first == "help";
    if (std::size_t const most = wants_help ? 1 : 0; (wants_help || first == "--version") && words.size() > most)
        throw cli::usage_error("cannot use '" + words[most] + "' here. Remove it.");
    if (first == "--version")
        return say(version());
    if (wants_help)
        return say(words.empty() ? cli::overview() : cli::help_of(command_of(words.front())));
    cli::command const& command = command_of(first);
    if (std::any_of(words.begin(), words.end(), is_help))
        return say(cli::help_of(command));
    cli::arguments arguments(command, words);
    return command.run(arguments);
}

} // namespace

int main(int argc, char** argv)
{
    try {
        int const status = run({argv + std::min(argc, 1), argv + argc});
        if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
            throw std::runtime_error("the output could not be written; is the disk full?");
        return status;
    } catch (std::exception const& error) {
        std::string const text = cli::for_people(error.what());
        std::fprintf(stderr, "%s%s\n", text.starts_with("adamant: ") ? "" : "adamant: ", text.c_str());
        return 2;
    }
}
