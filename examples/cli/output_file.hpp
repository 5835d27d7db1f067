// SPDX-License-Identifier: Apache-2.0
// A file for a result that takes a while: whether it can be written is known before.
#pragma once

#include <optional>
#include <string>

#include <adamant/checkpoint/durable_file.hpp>

namespace cli {

class output_file {
public:
    // No path: nothing is written. Throws adamant::unavailable with the path and the system's reason.
    explicit output_file(std::string const& path)
    {
        if (!path.empty())
            file_.emplace(path);
    }
    // Once. Until it returns, the path keeps what it had.
    void write(std::string const& text)
    {
        if (!file_)
            return;
        file_->write(text);
        file_->commit();
    }

private:
    std::optional<adamant::detail::durable_file> file_;
};

} // namespace cli
