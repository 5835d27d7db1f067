// SPDX-License-Identifier: Apache-2.0
// "Did you mean": known names similar to an unknown one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cli {

// The edit distance of two texts: letters inserted, deleted, replaced, or exchanged with the next one (optimal string
// alignment).
inline std::size_t edit_distance(std::string_view a, std::string_view b)
{
    std::vector<std::vector<std::size_t>> distance(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
    for (std::size_t i = 0; i <= a.size(); ++i)
        for (std::size_t j = 0; j <= b.size(); ++j) {
            if (i == 0 || j == 0) {
                distance[i][j] = i + j;
                continue;
            }
            distance[i][j] = std::min(
                {distance[i - 1][j] + 1, distance[i][j - 1] + 1, distance[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
        }
    return distance[a.size()][b.size()];
}

// "; did you mean A or B?" with the names nearest to `word`; empty if no name is near. names: pairs of the text to
// compare and the text to show.
inline std::string did_you_mean(std::string_view word, std::vector<std::pair<std::string, std::string>> const& names)
{
    std::size_t nearest = std::max<std::size_t>(word.size() / 3, 1); // names farther away are unrelated
    std::vector<std::string> suggestions;
    for (auto const& [candidate, suggestion] : names) {
        bool const is_prefix = word.size() > 2 && candidate.starts_with(word);
        std::size_t const distance = is_prefix ? 0 : edit_distance(word, candidate);
        if (distance < nearest)
            suggestions.clear();
        if (distance <= nearest) {
            nearest = distance;
            if (std::find(suggestions.begin(), suggestions.end(), suggestion) == suggestions.end())
                suggestions.push_back(suggestion);
        }
    }
    // Names that start with the word belong to one family, so more of them are shown.
    if (suggestions.empty() || suggestions.size() > (nearest == 0 ? 8 : 3))
        return "";
    std::string text = "; did you mean ";
    for (std::size_t i = 0; i < suggestions.size(); ++i)
        text += (i == 0 ? "" : i + 1 == suggestions.size() ? " or " : ", ") + suggestions[i];
    return text + "?";
}

} // namespace cli
