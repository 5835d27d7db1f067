// SPDX-License-Identifier: Apache-2.0
// The drawing of `adamant cores`: a block for each NUMA node of each package, in which every core is a cell that says
// whose it is; below, what the cells mean, and each rank's PUs.

#include "cores_drawing.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "cores_text.hpp"

namespace cli {

namespace {

using namespace adamant;

constexpr std::size_t cell_columns = 76;  // of the cells of a row: 24 cores and their gaps
constexpr std::size_t label_columns = 18; // for the PUs of a row

enum class owner { optimizer, host, several_ranks, another_rank, nobody, not_allowed, offline };

struct cell {
    owner whose = owner::nobody;
    unsigned rank = 0; // of the first two
};

using core_list = std::vector<std::size_t>; // places in machine::cores

// Cores of one package that use the same memory.
struct block {
    unsigned package;
    unsigned node;
    core_list cores;
};

class drawer {
public:
    explicit drawer(picture const& what) : what_(what), on_(what.on)
    {
        std::size_t const last_rank = what.only_rank ? *what.only_rank : what.ranks.size() - 1;
        width_ = std::to_string(last_rank).size() + 1;
        find_blocks();
        find_owners();
        find_gaps();
        for (block const& b : blocks_)
            for (core_list const& row : rows_of(b))
                label_width_ = std::max(label_width_, list_of(pus_of(row), label_columns).size());
        for (pu_set const& row : rows_of_offline())
            label_width_ = std::max(label_width_, list_of(row, label_columns).size());
    }

    std::string draw()
    {
        header();
        unsigned package = blocks_.front().package;
        for (block const& b : blocks_) {
            if (b.package != package)
                out_ += "\n";
            package = b.package;
            draw_block(b);
        }
        offline();
        elsewhere();
        std::string const above = std::move(out_);
        out_.clear();
        ranks();
        std::string const below = std::move(out_);
        out_.clear();
        legend(); // what occurs is known only now
        return above + out_ + below;
    }

private:
    void find_blocks()
    {
        for (std::size_t c = 0; c < on_.cores.size(); ++c) {
            core const& one = on_.cores[c];
            auto found = std::find_if(blocks_.begin(), blocks_.end(),
                                      [&](block const& b) { return b.package == one.package && b.node == one.node; });
            if (found == blocks_.end())
                found = blocks_.insert(blocks_.end(), {one.package, one.node, {}});
            found->cores.push_back(c);
        }
        std::stable_sort(blocks_.begin(), blocks_.end(),
                         [](block const& a, block const& b) { return a.package < b.package; });
    }

    void find_owners()
    {
        for (core const& one : on_.cores) {
            cell found{one.pus.intersects(what_.usable) ? owner::nobody : owner::not_allowed};
            bool given = false;
            bool ours = false;
            for (rank_cores const& r : what_.ranks)
                for (owner const side : {owner::optimizer, owner::host}) {
                    if (!one.pus.intersects(side == owner::host ? r.host_pus : r.adam_pus))
                        continue;
                    found = {given ? owner::several_ranks : side, r.rank};
                    given = true;
                    ours = ours || !what_.only_rank || r.rank == *what_.only_rank;
                }
            if (given && !ours)
                found.whose = owner::another_rank;
            cells_.push_back(found);
        }
    }

    // Blanks before each core: one where its second-level cache is not its neighbour's and some cores share theirs, two
    // where the third-level cache is another.
    void find_gaps()
    {
        std::size_t const none = on_.caches.size();
        auto const cache_of = [&](core const& one, unsigned level) {
            for (std::size_t k = 0; k < none; ++k)
                if (on_.caches[k].level == level && on_.caches[k].pus.intersects(one.pus))
                    return k;
            return none;
        };
        std::vector<std::size_t> cores_in(none + 1);
        std::vector<std::pair<std::size_t, std::size_t>> of;
        for (core const& one : on_.cores) {
            of.emplace_back(cache_of(one, 2), cache_of(one, 3));
            ++cores_in[of.back().first];
            ++cores_in[of.back().second];
        }
        gaps_.assign(on_.cores.size(), 0);
        for (std::size_t c = 1; c < gaps_.size(); ++c) {
            auto const differ = [&](std::size_t a, std::size_t b) { // caches of a core each are no groups
                return a != b && (cores_in[a] > 1 || cores_in[b] > 1);
            };
            if (differ(of[c - 1].second, of[c].second))
                gaps_[c] = 2;
            else if (differ(of[c - 1].first, of[c].first))
                gaps_[c] = 1;
        }
    }

    std::string list_of(pu_set const& pus, std::size_t columns = std::string::npos)
    {
        std::string text = short_list(pus, columns);
        strides_ = strides_ || text.find(':') != std::string::npos;
        return text;
    }
    std::string pus_text(pu_set const& pus) { return (pus.size() == 1 ? "PU " : "PUs ") + list_of(pus); }

    pu_set pus_of(core_list const& list) const
    {
        pu_set all;
        for (std::size_t const c : list)
            all |= on_.cores[c].pus;
        return all;
    }

    // Columns of cores in a row.
    std::size_t columns(core_list const& row) const
    {
        std::size_t sum = 0;
        for (std::size_t k = 0; k < row.size(); ++k)
            sum += width_ + (k == 0 ? 0 : 1 + gaps_[row[k]]);
        return sum;
    }

    // The rows of a block, which end where a cache ends if that can be.
    std::vector<core_list> rows_of(block const& b) const
    {
        std::vector<core_list> groups;
        for (unsigned const gap : {2u, 1u}) { // third-level caches, or where those are larger than a row, second-level
            groups.clear();
            for (std::size_t const c : b.cores) {
                if (groups.empty() || gaps_[c] >= gap)
                    groups.emplace_back();
                groups.back().push_back(c);
            }
            if (std::all_of(groups.begin(), groups.end(),
                            [&](core_list const& group) { return columns(group) <= cell_columns; }))
                break;
        }
        std::vector<core_list> parts; // that fit in a row
        for (core_list const& group : groups) {
            std::size_t const most = (cell_columns + 1) / (width_ + 1);
            std::size_t const step = columns(group) <= cell_columns ? group.size() : per_row(group.size(), most);
            for (std::size_t begin = 0; begin < group.size(); begin += step)
                parts.emplace_back(group.begin() + static_cast<std::ptrdiff_t>(begin),
                                   group.begin() + static_cast<std::ptrdiff_t>(std::min(begin + step, group.size())));
        }
        bool const alike = std::all_of(parts.begin(), parts.end(),
                                       [&](core_list const& part) { return part.size() == parts.front().size(); });
        std::size_t const most = (cell_columns + 3) / (columns(parts.front()) + 3);
        std::size_t const step = alike ? per_row(parts.size(), std::max<std::size_t>(most, 1)) : parts.size();
        std::vector<core_list> rows;
        std::size_t in_row = step;
        for (core_list const& part : parts) {
            if (in_row == step || (!alike && columns(rows.back()) + 3 + columns(part) > cell_columns)) {
                rows.emplace_back();
                in_row = 0;
            }
            rows.back().insert(rows.back().end(), part.begin(), part.end());
            ++in_row;
        }
        return rows;
    }

    static std::string symbol(cell const& one)
    {
        switch (one.whose) {
        case owner::optimizer: return std::to_string(one.rank) + "A";
        case owner::host: return std::to_string(one.rank) + "h";
        case owner::several_ranks: return "&&";
        case owner::another_rank: return "::";
        case owner::nobody: return "..";
        case owner::not_allowed: return "--";
        case owner::offline: return "xx";
        }
        return "??";
    }

    // In the colour of its rank, the optimizer's bold; dim what nobody has.
    std::string painted(std::string const& text, cell const& one) const
    {
        if (!what_.colours)
            return text;
        constexpr char const* of_rank[] = {"36", "33", "35", "32", "34", "31"};
        std::string style = of_rank[one.rank % std::size(of_rank)];
        switch (one.whose) {
        case owner::optimizer: style = "1;" + style; break;
        case owner::host: break;
        case owner::several_ranks: style = "7"; break;
        case owner::nobody: return text;
        case owner::another_rank:
        case owner::not_allowed:
        case owner::offline: style = "2"; break;
        }
        return "\033[" + style + "m" + text + "\033[0m";
    }

    void label(std::string const& text)
    {
        out_ += "  " + text;
        out_.append(label_width_ + 4 - std::min(label_width_ + 4, text.size()), ' ');
    }

    void draw_cell(cell const& one, bool first, std::size_t gap)
    {
        std::string const text = symbol(one);
        out_.append((first ? 1 : 1 + gap) + width_ - std::min(width_, text.size()), ' ');
        out_ += painted(text, one);
        seen_.push_back(one);
        if (!first)
            seen_gaps_.push_back(gap);
    }

    std::string node_text(numa_node const& node) const
    {
        return "NUMA node " + std::to_string(node.os_index) + ": " +
               (node.bytes == 0 ? "" : size_text(node.bytes) + " of ") + std::string(name(node.kind)) +
               (node.allowed ? "" : ", which this process may not use");
    }

    std::string gpu_text(std::size_t g) const
    {
        gpu const& device = on_.gpus[g];
        std::string const space = device.pci.empty() || device.name.empty() ? "" : " ";
        return printable("GPU " + std::to_string(g) + ": " + device.pci + space + device.name);
    }

    // The blocks that have PUs of a set.
    std::vector<block const*> blocks_near(pu_set const& pus) const
    {
        std::vector<block const*> found;
        for (block const& b : blocks_)
            if (pus_of(b.cores).intersects(pus))
                found.push_back(&b);
        return found;
    }

    bool is_a_blocks(std::size_t node) const
    {
        return std::any_of(blocks_.begin(), blocks_.end(), [&](block const& b) { return b.node == node; });
    }

    // The third-level caches of a block: "L3 of 32 MiB", "4 L3 of 16 MiB".
    std::string caches_text(block const& b) const
    {
        std::size_t count = 0;
        std::size_t bytes = 0;
        for (cache const& one : on_.caches)
            if (one.level == 3 && one.pus.intersects(pus_of(b.cores))) {
                if (++count > 1 && one.bytes != bytes)
                    return "";
                bytes = one.bytes;
            }
        if (bytes == 0)
            return "";
        return ", " + (count == 1 ? "" : std::to_string(count) + " ") + "L3 of " + size_text(bytes);
    }

    void draw_block(block const& b)
    {
        std::string title = "package " + std::to_string(b.package);
        if (!on_.nodes.empty() && b.node >= on_.nodes.size()) {
            title += ", no local memory";
        } else if (!on_.nodes.empty()) {
            auto const uses_it = [&](block const& other) { return other.node == b.node; };
            auto const users = std::count_if(blocks_.begin(), blocks_.end(), uses_it);
            bool const above = std::any_of(std::as_const(blocks_).data(), &b, uses_it);
            title += ", " + (above ? "NUMA node " + std::to_string(on_.nodes[b.node].os_index) + " (as above)"
                                   : node_text(on_.nodes[b.node]));
            if (users > 1 && !above)
                title += ", for " + plural(static_cast<std::size_t>(users), "package");
        }
        out_ += wrapped("", title + caches_text(b));
        for (std::size_t n = 0; n < on_.nodes.size(); ++n)
            if (!is_a_blocks(n))
                if (auto const near = blocks_near(on_.nodes[n].pus); near.size() == 1 && near.front() == &b)
                    out_ += wrapped("  and ", node_text(on_.nodes[n]));
        for (std::size_t g = 0; g < on_.gpus.size(); ++g)
            if (auto const near = blocks_near(on_.gpus[g].pus); near.size() == 1 && near.front() == &b)
                out_ += wrapped("  and ", gpu_text(g));
        for (core_list const& row : rows_of(b)) {
            label("PU " + list_of(pus_of(row), label_columns));
            for (std::size_t const c : row)
                draw_cell(cells_[c], c == row.front(), gaps_[c]);
            out_ += "\n";
            if (!on_.hybrid())
                continue;
            label("speed");
            for (std::size_t const c : row) {
                std::string const speed = std::to_string(on_.cores[c].efficiency);
                out_.append((c == row.front() ? 1 : 1 + gaps_[c]) + width_ - std::min(width_, speed.size()), ' ');
                out_ += speed;
            }
            out_ += "\n";
        }
    }

    // Which core a PU belongs to that is switched off, nobody knows.
    std::vector<pu_set> rows_of_offline() const
    {
        std::vector<unsigned> const all = on_.offline.members();
        std::size_t const step = per_row(all.size(), (cell_columns + 1) / (width_ + 1));
        std::vector<pu_set> rows;
        for (std::size_t k = 0; k < all.size(); ++k) {
            if (k % step == 0)
                rows.emplace_back();
            rows.back().insert(all[k]);
        }
        return rows;
    }
    void offline()
    {
        if (on_.offline.empty())
            return;
        out_ += "\noffline PUs, of these or of other cores\n";
        for (pu_set const& row : rows_of_offline()) {
            label("PU " + list_of(row, label_columns));
            for (std::size_t k = 0; k < row.size(); ++k)
                draw_cell({owner::offline}, k == 0, 0);
            out_ += "\n";
        }
    }

    // Memory and GPUs that are near no block or near several.
    void elsewhere()
    {
        std::string lines;
        for (std::size_t n = 0; n < on_.nodes.size(); ++n)
            if (numa_node const& node = on_.nodes[n]; !is_a_blocks(n) && blocks_near(node.pus).size() != 1)
                lines += wrapped("  ", node_text(node) + (node.pus.empty() ? ", near no core" : near_text(node.pus)));
        for (std::size_t g = 0; g < on_.gpus.size(); ++g)
            if (pu_set const& pus = on_.gpus[g].pus; blocks_near(pus).size() != 1)
                lines += wrapped("  ", gpu_text(g) + near_text(pus));
        if (!lines.empty())
            out_ += "\nnear none of these, or near several\n" + lines;
    }
    std::string near_text(pu_set const& pus)
    {
        return pus.includes(on_.pus()) ? ", as near to one core as to another" : ", near " + pus_text(pus);
    }

    void legend()
    {
        std::sort(seen_.begin(), seen_.end(),
                  [](cell const& a, cell const& b) { return std::pair(a.whose, a.rank) < std::pair(b.whose, b.rank); });
        seen_.erase(
            std::unique(seen_.begin(), seen_.end(), [](cell const& a, cell const& b) { return a.whose == b.whose; }),
            seen_.end());
        std::vector<std::pair<std::string, std::string>> entries; // plain, and as it is printed
        auto const add = [&](cell const& one, std::string const& meaning) {
            entries.emplace_back(symbol(one) + " " + meaning, painted(symbol(one), one) + " " + meaning);
        };
        for (cell const& one : seen_)
            switch (one.whose) {
            case owner::optimizer: add(one, "optimizer (Adam) of rank " + std::to_string(one.rank)); break;
            case owner::host: add(one, "host framework of rank " + std::to_string(one.rank)); break;
            case owner::several_ranks: add(one, "shared by several ranks"); break;
            case owner::another_rank: add(one, "another rank's"); break;
            case owner::nobody: add(one, "usable, given to nobody"); break;
            case owner::not_allowed: add(one, "not allowed"); break;
            case owner::offline: add(one, "offline"); break;
            }
        bool const l2 = std::count(seen_gaps_.begin(), seen_gaps_.end(), 1u) != 0;
        bool const l3 = std::count(seen_gaps_.begin(), seen_gaps_.end(), 2u) != 0;
        auto const note = [&](std::string const& text) { entries.emplace_back(text, text); };
        if (l2 || l3)
            note(l2 && l3 ? "gap: another L2, wide gap: another L3" : l2 ? "gap: another L2" : "gap: another L3");
        if (on_.pus().size() != on_.cores.size())
            note("a cell is a core with all its PUs");
        if (on_.hybrid()) {
            unsigned most = 0;
            for (core const& one : on_.cores)
                most = std::max(most, one.efficiency);
            note("speed: " + std::to_string(most) + " fastest, 0 slowest");
        }
        if (strides_)
            note("0-6:2 is 0,2,4,6");
        out_ += "\n";
        std::size_t column = 0;
        for (auto const& [plain, printed] : entries) {
            if (column != 0 && column + 3 + plain.size() > text_columns) {
                out_ += "\n";
                column = 0;
            }
            out_ += (column == 0 ? "" : "   ") + printed;
            column += (column == 0 ? 0 : 3) + plain.size();
        }
        out_ += "\n\n";
    }

    void header()
    {
        std::size_t const pus = on_.pus().size();
        out_ += wrapped("machine  ", printable(on_.source));
        out_ +=
            wrapped("         ", plural(on_.packages.size(), "package") + ", " + plural(on_.nodes.size(), "NUMA node") +
                                     ", " + plural(on_.cores.size(), "core") + ", " + plural(pus, "PU") +
                                     (on_.offline.empty() ? ""
                                                          : " and " + std::to_string(on_.offline.size()) +
                                                                " offline (" + list_of(on_.offline) + ")"));
        out_ += wrapped("allowed  ", what_.usable.size() == pus
                                         ? "all PUs"
                                         : pus_text(what_.usable) + " (" + std::to_string(what_.usable.size()) +
                                               " of " + std::to_string(pus) + ")");
        out_ += wrapped("ranks    ", std::to_string(what_.ranks.size()) + ", " + what_.ranks_from) + "\n";
    }

    // Each rank's PUs in columns, and why.
    void ranks()
    {
        struct line {
            rank_cores const& of;
            std::string optimizer, host, memory;
        };
        std::vector<line> lines;
        std::size_t optimizer_width = 0;
        std::size_t host_width = 0;
        for (rank_cores const& r : what_.ranks) {
            if (what_.only_rank && r.rank != *what_.only_rank)
                continue;
            lines.push_back({r, "optimizer on " + pus_text(r.adam_pus),
                             r.host_pus.empty() ? "host on the same" : "host on " + pus_text(r.host_pus),
                             r.numa_nodes.empty()
                                 ? ""
                                 : std::string("memory of NUMA node") + (r.numa_nodes.size() == 1 ? " " : "s ") +
                                       to_list(r.numa_nodes)});
            optimizer_width = std::max(optimizer_width, lines.back().optimizer.size());
            host_width = std::max(host_width, lines.back().host.size());
        }
        std::size_t const name_width = std::to_string(lines.back().of.rank).size();
        for (auto const& [r, optimizer, host, memory] : lines) {
            std::string const number = std::to_string(r.rank);
            std::string const prefix = "rank " + std::string(name_width - number.size(), ' ') + number + "  ";
            auto const padded = [](std::string text, std::size_t width) {
                return text.append(width - text.size() + 3, ' ');
            };
            std::string const text =
                padded(optimizer, optimizer_width) + (memory.empty() ? host : padded(host, host_width) + memory);
            std::string const indent(prefix.size(), ' ');
            out_ += painted(prefix, {owner::optimizer, r.rank});
            if (prefix.size() + text.size() <= text_columns)
                out_ += text + "\n";
            else // a line each
                out_ += wrapped(indent, optimizer).substr(indent.size()) + wrapped(indent, host) +
                        (memory.empty() ? "" : wrapped(indent, memory));
            // The line begins with the rank already.
            std::string why = printable(r.why);
            std::string const known = "rank " + number + " of " + std::to_string(what_.ranks.size()) + " has ";
            if (why.starts_with(known))
                why.erase(0, known.size());
            out_ += wrapped(indent, why);
        }
    }

    picture const& what_;
    machine const& on_;
    std::vector<block> blocks_;
    std::vector<cell> cells_;    // of each core
    std::vector<unsigned> gaps_; // before each core
    std::vector<cell> seen_;     // that were drawn
    std::vector<std::size_t> seen_gaps_;
    std::size_t width_ = 0; // of a cell
    std::size_t label_width_ = 0;
    bool strides_ = false; // whether a list with them was drawn
    std::string out_;
};

} // namespace

std::string draw(picture const& what)
{
    return drawer(what).draw();
}

} // namespace cli
