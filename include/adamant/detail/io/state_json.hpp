// SPDX-License-Identifier: Apache-2.0
// Opt-in: a strict JSON parser, and conversion of a state_dict without its tensors to and from JSON. Needs
// nlohmann-json.
#pragma once

#if !__has_include(<nlohmann/json.hpp>)
#error                                                                                                                 \
    "adamant's checkpoint files need nlohmann-json 3.11 or newer, and the compiler finds no nlohmann/json.hpp (Debian and Ubuntu: nlohmann-json3-dev)."
#endif

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <adamant/checkpoint.hpp>
#include <adamant/detail/io/state_check.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

using json = nlohmann::json;

// A text is refused. Readers of files add the file's name to the message.
class malformed : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Builds a JSON value from the parser's events in linear time. (nlohmann-json's own parser with a callback searches an
// object after each of its members.)
class json_builder {
public:
    explicit json_builder(json& root) : root_(root) {}

    bool null() { return value(nullptr); }
    bool boolean(bool flag) { return value(flag); }
    bool number_integer(json::number_integer_t number) { return value(number); }
    bool number_unsigned(json::number_unsigned_t number) { return value(number); }
    bool number_float(json::number_float_t number, std::string const&) { return value(number); }
    bool string(std::string& text) { return value(std::move(text)); }
    bool binary(json::binary_t&) { return false; } // JSON has none
    bool start_object(std::size_t) { return open(json::value_t::object); }
    bool start_array(std::size_t) { return open(json::value_t::array); }
    bool end_object() { return close(); }
    bool end_array() { return close(); }
    bool key(std::string& name)
    {
        auto const [match, is_new] = levels_.back().container->get_ref<json::object_t&>().emplace(name, nullptr);
        if (!is_new)
            throw malformed(text_of({"the key ", json(name).dump().substr(0, 200), " appears twice"}));
        levels_.back().member = &match->second;
        return true;
    }
    bool parse_error(std::size_t, std::string const&, json::exception const& error)
    {
        throw malformed(std::string(error.what()).substr(0, 200)); // may quote megabytes of the text
    }

private:
    struct level {
        json* container;
        json* member = nullptr; // object: value of the most recent key
        std::size_t values = 0; // array: number of scalars
    };

    json& put(json element)
    {
        if (levels_.empty())
            return root_ = std::move(element);
        level const& inside = levels_.back();
        if (inside.container->is_object())
            return *inside.member = std::move(element);
        return inside.container->get_ref<json::array_t&>().emplace_back(std::move(element));
    }
    bool value(json element)
    {
        if (!levels_.empty() && levels_.back().container->is_array() && ++levels_.back().values > max_dimensions)
            throw malformed(text_of({"an array has more than ", max_dimensions, " values"}));
        put(std::move(element));
        return true;
    }
    bool open(json::value_t kind)
    {
        if (levels_.size() == 4)
            throw malformed("it is nested more than four levels deep");
        levels_.push_back({&put(kind)}); // the pointer is stable: the parent gets no other value before close()
        return true;
    }
    bool close()
    {
        levels_.pop_back();
        return true;
    }

    json& root_;
    std::vector<level> levels_;
};

// Throws malformed for a text that is not JSON, for duplicate keys, and for input that could exhaust memory or the
// stack and that no state needs: more than four levels, and arrays with more numbers than a shape can have.
inline json parse_json(std::string_view text)
{
    if (text.find('\0') != text.npos) // where nlohmann-json sees the end of the text
        throw malformed("a byte that is 0");
    json result;
    json_builder builder(result);
    json::sax_parse(text.begin(), text.end(), &builder);
    return result;
}

// Access to the members of an object that must have exactly `count` keys.
class json_members {
public:
    json_members(json const& object, std::string subject, std::size_t count)
        : object_(object), subject_(std::move(subject))
    {
        if (!object.is_object() || object.size() != count)
            throw malformed(text_of({subject_, " is not an object of ", count, " members"}));
    }

    [[nodiscard]] json const& at(std::string const& key) const
    {
        auto const match = object_.find(key);
        if (match == object_.end())
            throw malformed(text_of({subject_, " has no ", in_quotes(key)}));
        return *match;
    }
    [[nodiscard]] std::string string(std::string const& key) const
    {
        return get<std::string>(key, at(key).is_string());
    }
    [[nodiscard]] bool boolean(std::string const& key) const { return get<bool>(key, at(key).is_boolean()); }
    [[nodiscard]] double number(std::string const& key) const { return get<double>(key, at(key).is_number_float()); }
    template <class Unsigned = std::size_t>
    [[nodiscard]] Unsigned count(std::string const& key) const
    {
        auto const value = get<std::uint64_t>(key, at(key).is_number_unsigned());
        if (value > std::numeric_limits<Unsigned>::max())
            refuse(key);
        return static_cast<Unsigned>(value);
    }
    [[nodiscard]] json const& array(std::string const& key) const
    {
        if (!at(key).is_array())
            refuse(key);
        return at(key);
    }
    [[nodiscard]] std::vector<std::size_t> counts(std::string const& key) const
    {
        std::vector<std::size_t> result;
        for (json const& n : array(key)) {
            if (!n.is_number_unsigned())
                refuse(key);
            result.push_back(n.get<std::size_t>());
        }
        return result;
    }

private:
    [[noreturn]] void refuse(std::string const& key) const
    {
        throw malformed(text_of({subject_, " has a value of the wrong type as ", in_quotes(key)}));
    }
    template <class T>
    T get(std::string const& key, bool has_type) const
    {
        if (!has_type)
            refuse(key);
        return at(key).get<T>();
    }

    json const& object_;
    std::string subject_;
};

// Doubles are written with enough digits for their exact value.
inline json groups_json(std::vector<parameter_group> const& parameter_groups)
{
    json groups = json::array();
    for (parameter_group const& group : parameter_groups) {
        json entry = {{"name", group.name},
                      {"mode", decay_mode_names[static_cast<unsigned>(group.hyper.mode)]},
                      {"bias_correction", group.hyper.bias_correction},
                      {"maximize", group.maximize},
                      {"exp_avg_sq_rounding", rounding_names[static_cast<unsigned>(group.hyper.rounding.exp_avg_sq)]},
                      {"param_rounding", rounding_names[static_cast<unsigned>(group.hyper.rounding.param)]},
                      {"rounding_seed", group.hyper.rounding.seed}};
        for (auto const& [key, field] : hyperparameter_numbers)
            entry[key] = group.hyper.*field;
        groups.push_back(std::move(entry));
    }
    return groups;
}
inline json loss_scaler_json(std::optional<loss_scaler_state> const& state)
{
    json scaler = nullptr;
    if (state)
        scaler = {
            {"scale", state->scale}, {"good_steps", state->good_steps}, {"hysteresis_left", state->hysteresis_left}};
    return scaler;
}

// Returns groups, loss scaler and params of a valid state as JSON, without the step and the tensors.
inline std::string state_text(state_dict const& state)
{
    json params = json::array();
    for (state_param const& param : state.params)
        params.push_back({{"name", param.name}, {"shape", param.shape}, {"group", param.group}});
    return json{{"groups", groups_json(state.groups)},
                {"loss_scaler", loss_scaler_json(state.loss_scaler)},
                {"params", std::move(params)}}
        .dump();
}

// The parsers of the JSON of states throw malformed for another structure. They leave the check of values to
// validate().
inline std::optional<loss_scaler_state> loss_scaler_from(json const& entry)
{
    if (entry.is_null())
        return {};
    json_members const scaler(entry, "the loss scaler", 3);
    return loss_scaler_state{scaler.number("scale"), scaler.count<std::uint32_t>("good_steps"),
                             scaler.count<std::uint32_t>("hysteresis_left")};
}
inline std::vector<parameter_group> groups_from(json const& array)
{
    std::vector<parameter_group> groups;
    for (json const& entry : array) {
        bool const has_rounding = entry.is_object() && entry.contains("rounding_seed");
        json_members const members(entry, "group " + std::to_string(groups.size()),
                                   4 + hyperparameter_numbers.size() + (has_rounding ? 3 : 0));
        parameter_group group;
        group.name = members.string("name");
        for (auto const& [key, field] : hyperparameter_numbers)
            group.hyper.*field = members.number(key);
        // The index in a list of names. An unknown name gives an index that validate() refuses.
        auto const choice = [&](char const* key, auto const& names) {
            return std::find(std::begin(names), std::end(names), members.string(key)) - std::begin(names);
        };
        group.hyper.mode = static_cast<decay_mode>(choice("mode", decay_mode_names));
        // Older files have no rounding: their runs rounded to nearest, and continue to.
        group.hyper.rounding = {rounding::nearest, rounding::nearest, 0};
        if (has_rounding)
            group.hyper.rounding = {static_cast<rounding>(choice("exp_avg_sq_rounding", rounding_names)),
                                    static_cast<rounding>(choice("param_rounding", rounding_names)),
                                    members.count<std::uint64_t>("rounding_seed")};
        group.hyper.bias_correction = members.boolean("bias_correction");
        group.maximize = members.boolean("maximize");
        groups.push_back(std::move(group));
    }
    return groups;
}
inline state_dict state_from_text(std::string_view text)
{
    json const parsed = parse_json(text);
    json_members const all(parsed, "the state", 3);
    state_dict state;
    state.loss_scaler = loss_scaler_from(all.at("loss_scaler"));
    state.groups = groups_from(all.array("groups"));
    for (json const& entry : all.array("params")) {
        json_members const members(entry, "param " + std::to_string(state.params.size()), 3);
        state.params.push_back({members.string("name"), members.counts("shape"), members.count("group")});
    }
    return state;
}

} // namespace detail
ADAMANT_END_NAMESPACE
