// SPDX-License-Identifier: Apache-2.0
// "Did you mean": names like one that is not known.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cli {

// How many letters to insert, leave out, replace, or exchange with the next one make one text of the other (optimal
// string alignment).
inline std::size_t edit_distance(std::string_view a, std::string_view b)
{
    std::vector<std::vector<std::size_t>> to(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
    for (std::size_t i = 0; i <= a.size(); ++i)
        for (std::size_t j = 0; j <= b.size(); ++j) {
            if (i == 0 || j == 0) {
                to[i][j] = i + j;
                continue;
            }
            to[i][j] = std::min({to[i - 1][j] + 1, to[i][j - 1] + 1, to[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                to[i][j] = std::min(to[i][j], to[i - 2][j - 2] + 1);
        }
    return to[a.size()][b.size()];
}

// "; did you mean A or B?", of the names that are nearest to `word`; empty where none is near. names: how each is
// compared, and how it is shown.
inline std::string did_you_mean(std::string_view word, std::vector<std::pair<std::string, std::string>> const& names)
{
    std::size_t nearest = std::max<std::size_t>(word.size() / 3, 1); // farther ones are others
    std::vector<std::string> found;
    for (auto const& [compared, shown] : names) {
        bool const begun = word.size() > 2 && compared.starts_with(word);
        std::size_t const distance = begun ? 0 : edit_distance(word, compared);
        if (distance < nearest)
            found.clear();
        if (distance <= nearest) {
            nearest = distance;
            if (std::find(found.begin(), found.end(), shown) == found.end())
                found.push_back(shown);
        }
    }
    // Names that start with the word belong to one family, so more of them are shown.
    if (found.empty() || found.size() > (nearest == 0 ? 8 : 3))
        return "";
    std::string text = "; did you mean ";
    for (std::size_t i = 0; i < found.size(); ++i)
        text += (i == 0 ? "" : i + 1 == found.size() ? " or " : ", ") + found[i];
    return text + "?";
}

} // namespace cli
