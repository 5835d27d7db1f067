// SPDX-License-Identifier: Apache-2.0
// The C interface: texts of the C++ library name what C has.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <adamant/detail/c/names.hpp>

#include "c_test.hpp"

namespace {

namespace fs = std::filesystem;
fs::path const include = ADAMANT_INCLUDE;

std::string in_c(std::string_view text, std::span<adamant::c::c_name const> own = {})
{
    std::string result;
    adamant::c::each_piece_in_c(text, own, [&](std::string_view piece) { result += piece; });
    return result;
}

bool is_of_zenflow(std::string_view file)
{
    return file.starts_with("zenflow") || file.starts_with("detail/zenflow/");
}

std::string content(fs::path const& path)
{
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

// A source file in two parts: its string literals, adjacent ones joined, and its code without these and comments.
struct source {
    std::vector<std::string> literals;
    std::string code;

    explicit source(std::string const& text)
    {
        bool joins = false; // nothing but blanks since the last literal
        for (std::size_t i = 0; i < text.size(); ++i) {
            char const c = text[i];
            if (text.compare(i, 2, "//") == 0) {
                i = std::min(text.find('\n', i), text.size()) - 1;
            } else if (text.compare(i, 2, "/*") == 0) {
                i = std::min(text.find("*/", i), text.size() - 2) + 1;
            } else if (c == '\'' && !(i > 0 && std::isalnum(static_cast<unsigned char>(text[i - 1])))) {
                for (++i; text[i] != '\''; ++i)
                    i += text[i] == '\\';
                joins = false;
            } else if (c == '"' && i > 0 && text[i - 1] == 'R') {
                i = text.find(")\"", i) + 1;
                joins = false;
            } else if (c == '"') {
                if (!joins)
                    literals.emplace_back();
                for (++i; text[i] != '"'; ++i) {
                    i += text[i] == '\\';
                    literals.back() += text[i];
                }
                joins = true;
            } else {
                joins = joins && std::isspace(static_cast<unsigned char>(c));
                code += c;
            }
        }
    }
};

bool is_source(fs::path const& path)
{
    auto const extension = path.extension();
    return extension == ".hpp" || extension == ".ipp" || extension == ".inl" || extension == ".cuh";
}

std::vector<std::string> matches(std::string const& text, std::regex const& pattern)
{
    std::vector<std::string> found;
    for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at)
        found.push_back((*at)[1]);
    return found;
}

// The fields of the plain structs in a header; what is indented further is local to a function.
std::set<std::string> fields_of(std::string const& code)
{
    static std::regex const body_pattern(R"(\nstruct \w+ \{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\n\};)");
    static std::regex const field_pattern(R"(\n    [\w:<>,][\w:<>, ]* (\w+)(?: = [^;]*)?;)");
    std::set<std::string> fields;
    for (std::string const& body : matches(code, body_pattern))
        for (std::string const& field : matches(body, field_pattern))
            fields.insert(field);
    return fields;
}

} // namespace

TEST_CASE("C: a text of the C++ library in C's words")
{
    CHECK(in_c("adamant: cannot call submit(): no step is open. Call begin_step() first.") ==
          "adamant: cannot call adamant_submit(): no step is open. Call adamant_begin_step() first.");
    CHECK(in_c("binding::none") == "ADAMANT_BIND_NONE");
    CHECK(in_c("") == "");
    // Not what is in C's words already, no part of a longer name, no path, and nothing that the caller has named.
    for (char const* const same : {"adamant_finish()", "my_step()", "step", "step(x)", "/home/step()/x", "x::load()",
                                   "shard 'begin_step()' of 'load()'", "('step()')", "dtype::float320"})
        CHECK(in_c(same) == same);
    CHECK(in_c("the optimizer's step() of 'step()' isn't") == "the optimizer's adamant_step() of 'step()' isn't");
    CHECK(in_c("a 'quote without end: step()") == "a 'quote without end: adamant_step()");
    for (std::span<adamant::c::c_name const> const names :
         {std::span<adamant::c::c_name const>(adamant::c::c_names), {adamant::c::c_zenflow_names}})
        for (std::size_t i = 0; i < names.size(); ++i)
            for (std::size_t j = 0; j < i; ++j)
                CHECK(!names[i].in_cpp.starts_with(names[j].in_cpp));
    // Names of its own go before, and all others stay.
    CHECK(in_c("submit() it, for rollback(), 'place()', place(nullptr)", adamant::c::c_zenflow_names) ==
          "adamant_zenflow_submit() it, for adamant_rollback(), 'place()', adamant_zenflow_place() without a device");
    // Through the library.
    model m;
    optimizer const o = make_optimizer(m);
    adamant_status const status = adamant_submit(o.get(), 0);
    CHECK(status == ADAMANT_INVALID_ARGUMENT);
    CHECK(last_error() == "adamant: cannot call adamant_submit(): no step is open. Call adamant_begin_step() first.");
}

TEST_CASE("C: a text that is too long ends where it is cut")
{
    // With a name of ours behind the cut, at each of three places in a character.
    for (std::string name : {"", "x", "xx"}) {
        while (name.size() < 6000)
            name += "\xe2\x82\xac";
        model m;
        adamant_optimizer* made = nullptr;
        ok(adamant_optimizer_create(make_executor(1).get(), nullptr, &made));
        optimizer const o(made);
        adamant_hyperparameters const h = hyperparameters();
        ok(adamant_add_group(made, "g", &h, 0, nullptr));
        adamant_shard const s = m.describe(0);
        ok(adamant_add_shard(made, 0, name.c_str(), &s, nullptr));
        ok(adamant_begin_step(made, nullptr));
        ok(adamant_submit(made, 0));
        refused(adamant_accumulate(made, 0), "\xe2\x82\xac");
        CHECK((last_error().size() <= 4095 && last_error().size() >= 4093));
        CHECK(last_error().ends_with("\xe2\x82\xac"));
        ok(adamant_finish(made, nullptr));
    }
}

TEST_CASE("C: texts name what C has")
{
    // What is no function of ours, or is said of what C does not have.
    std::set<std::string> const other_calls = {
        "Active",
        "Inactive", // lines of /proc
        "unroll",
        "enable_language",
        "gettid",            // of compilers, CMake and the system
        "make_coefficients", // lists of shards
        "open",
        "write",
        "fsync",
        "fstat",
        "fchmod",
        "flock",
        "ftruncate",
        "mmap",
        "rename", // of the system
    };
    std::set<std::string> const other_enumerators = {"adamant::bfloat16", "adamant::float16", "adamant::split_float32",
                                                     "adamant::quantized8"}; // said by compilers
    std::set<std::string> const other_fields = {
        "of", // a word of English
        "l2",
        "loss_scaler",
        "median_s",
        "p10_s",
        "p90_s",
        "time_ratio", // keys of files
        "gradient_accumulation_steps",
        "model_type", // DeepSpeed's configuration
        "l3_share",
        "bandwidth_share", // resctrl groups
    };

    std::regex const word(R"((\w+))");
    std::set<std::string> c_words;
    for (std::string const& found : matches(source(content(include / "adamant.h")).code, word))
        c_words.insert(found);

    std::set<std::string> fields;
    std::vector<std::pair<std::string, std::string>> texts; // with their files
    for (fs::path const& path : fs::recursive_directory_iterator(include)) {
        std::string const name = path.lexically_relative(include).string();
        if (!is_source(path) || name.starts_with("detail/c/") || name.starts_with("detail/src/"))
            continue;
        source const file(content(path));
        fields.merge(fields_of(file.code));
        for (std::string const& literal : file.literals)
            texts.emplace_back(name, is_of_zenflow(name) ? in_c(literal, adamant::c::c_zenflow_names) : in_c(literal));
    }
    CHECK(texts.size() > 1000);
    CHECK(fields.size() > 100);

    std::regex const call(R"(([A-Za-z_][\w:]*)\()");
    std::regex const enumerator(R"((\w+::\w+))");
    // A field is a name that is no word of English, or a word in the place of an option.
    std::regex const field_patterns[] = {
        std::regex(R"(\b([a-z]+[_0-9]\w*))"), std::regex(R"(^adamant: (\w+) (?:is|holds))"),
        std::regex(R"(\bset (\w+))"), std::regex(R"(\bbut (\w+) is\b)"), std::regex(R"((\w+) (?:of|in) the options)")};
    std::size_t calls = 0;
    std::size_t calls_of_zenflow = 0;
    std::size_t named_fields = 0;
    for (auto const& [file, text] : texts) {
        INFO(file << ": " << text);
        for (std::string const& found : matches(text, call)) {
            INFO(found << "() is to be in include/adamant/detail/c/names.hpp");
            ++calls;
            bool const of_zenflow = is_of_zenflow(file) && found != "adamant_rollback"; // which it has not
            CHECK((found.starts_with(of_zenflow ? "adamant_zenflow_" : "adamant_") || other_calls.contains(found)));
            calls_of_zenflow += of_zenflow;
        }
        for (std::string const& found : matches(text, enumerator)) {
            INFO(found << " is to be in include/adamant/detail/c/names.hpp");
            CHECK(other_enumerators.contains(found));
        }
        for (std::regex const& pattern : field_patterns)
            for (std::string const& found : matches(text, pattern)) {
                INFO(found << " is no field in C; say it in C's words in include/adamant/detail/c/names.hpp");
                named_fields += fields.contains(found);
                CHECK((!fields.contains(found) || c_words.contains(found) || other_fields.contains(found)));
            }
    }
    CHECK(calls > 20);
    CHECK(calls_of_zenflow > 10);
    CHECK(named_fields > 50);
}
