// SPDX-License-Identifier: Apache-2.0
// A machine that the tests have not, as a folder of files of /proc and /sys.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>

namespace test {

// A folder that stands for /, with files made to order.
class fake_root {
public:
    fake_root()
    {
        std::string name = (std::filesystem::temp_directory_path() / "adamant_root_XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr)
            throw std::runtime_error("mkdtemp " + name);
        path_ = name;
    }
    fake_root(fake_root const&) = delete;
    fake_root& operator=(fake_root const&) = delete;
    ~fake_root()
    {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    fake_root& put(std::string const& file, std::string const& text)
    {
        std::filesystem::create_directories((path_ / file).parent_path());
        std::ofstream(path_ / file) << text;
        return *this;
    }
    [[nodiscard]] std::filesystem::path const& path() const { return path_; }

private:
    std::filesystem::path path_;
};

} // namespace test
