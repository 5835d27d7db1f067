// SPDX-License-Identifier: Apache-2.0
// The output file of a long command. It is opened before the work begins, so that errors come early.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include <adamant/detail/io/durable_file.hpp>

#include "arguments.hpp"

namespace cli {

// Throws usage_error if the value of a file's option is "-", which means stdout for other options.
inline void refuse_stream(std::string_view option, std::string const& path)
{
    if (path == "-")
        throw usage_error(std::string(option) +
                          " is '-', but needs a file; only --json and --csv may be written to stdout");
}

class output_file {
public:
    // Empty path: write() does nothing. "-": stdout, in place of the report. Throws adamant::unavailable with the path
    // and the system's reason.
    explicit output_file(std::string const& path) : is_stdout_(path == "-")
    {
        if (!path.empty() && !is_stdout_)
            file_.emplace(path);
    }
    [[nodiscard]] bool is_stdout() const { return is_stdout_; }
    // Writes the whole file; call it once. Until it returns, the path keeps its old content. Warns on stderr if the
    // file system could not sync the directory.
    void write(std::string const& text)
    {
        if (is_stdout_)
            std::fputs(text.c_str(), stdout);
        if (!file_)
            return;
        file_->write(text);
        if (adamant::save_report const report = file_->commit(); !report.reason.empty())
            std::fprintf(stderr, "adamant: the file is complete, but %s\n", report.reason.c_str());
    }

private:
    bool is_stdout_;
    std::optional<adamant::detail::durable_file> file_;
};

} // namespace cli
