// SPDX-License-Identifier: Apache-2.0
// The drawing of `adamant cores`: a block for each NUMA node of each package, with a cell for every core that shows its
// owner; below, a legend, and each rank's PUs.

#include "cores_drawing.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "cores_layout.hpp"
#include "cores_text.hpp"
#include "this_machine.hpp"

namespace cli {

namespace {

using namespace adamant;

constexpr std::size_t label_columns = 18; // for the PUs of a row

enum class owner { optimizer, host, several_ranks, another_rank, no_rank, not_allowed, offline };

struct cell {
    owner user = owner::no_rank;
    unsigned rank = 0; // for owners optimizer and host
};

class drawer {
public:
    explicit drawer(picture const& content)
        : picture_(content), host_(content.host),
          width_(std::to_string(content.only_rank ? *content.only_rank : content.ranks.size() - 1).size() + 1),
          layout_(content.host, width_)
    {
        find_owners();
        for (section const& s : layout_.sections())
            for (std::vector<core_list> const& row : s.rows)
                label_width_ = std::max(label_width_, list_of(pus_of(row), label_columns).size());
        for (pu_set const& row : rows_of_offline())
            label_width_ = std::max(label_width_, list_of(row, label_columns).size());
    }

    std::string draw()
    {
        draw_header();
        unsigned package = layout_.blocks().front().package;
        for (section const& s : layout_.sections()) {
            if (s.blocks.front().package != package)
                out_ += "\n";
            package = s.blocks.back().package;
            draw_section(s);
        }
        draw_offline();
        draw_elsewhere();
        std::string const above = std::move(out_);
        out_.clear();
        draw_ranks();
        std::string const below = std::move(out_);
        out_.clear();
        draw_legend(); // the symbols that occur are known only now
        return above + out_ + below;
    }

private:
    void find_owners()
    {
        for (topology::core const& core : host_.cores) {
            cell result{core.pus.intersects(picture_.usable) ? owner::no_rank : owner::not_allowed};
            bool has_owner = false;
            bool is_shown = false;
            for (rank_cores const& r : picture_.ranks)
                for (owner const kind : {owner::optimizer, owner::host}) {
                    if (!core.pus.intersects(kind == owner::host ? r.host_pus : r.adam_pus))
                        continue;
                    result = {has_owner ? owner::several_ranks : kind, r.rank};
                    has_owner = true;
                    is_shown = is_shown || !picture_.only_rank || r.rank == *picture_.only_rank;
                }
            if (has_owner && !is_shown)
                result.user = owner::another_rank;
            cells_.push_back(result);
        }
    }

    std::string list_of(pu_set const& pus, std::size_t columns = std::string::npos)
    {
        std::string text = short_list(pus, columns);
        strides_ = strides_ || text.find(':') != std::string::npos;
        return text;
    }
    std::string pus_text(pu_set const& pus) { return (pus.size() == 1 ? "PU " : "PUs ") + list_of(pus); }

    static std::string symbol(cell const& item)
    {
        switch (item.user) {
        case owner::optimizer: return std::to_string(item.rank) + "A";
        case owner::host: return std::to_string(item.rank) + "h";
        case owner::several_ranks: return "&&";
        case owner::another_rank: return "::";
        case owner::no_rank: return "..";
        case owner::not_allowed: return "--";
        case owner::offline: return "xx";
        }
        return "??";
    }

    // Paints a cell in the colour of its rank, the optimizer's bold. Cells without a rank are dim.
    std::string paint(std::string const& text, cell const& item) const
    {
        if (!picture_.colours)
            return text;
        constexpr char const* rank_colours[] = {"36", "33", "35", "32", "34", "31"};
        std::string style = rank_colours[item.rank % std::size(rank_colours)];
        switch (item.user) {
        case owner::optimizer: style = "1;" + style; break;
        case owner::host: break;
        case owner::several_ranks: style = "7"; break;
        case owner::no_rank: return text;
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

    void draw_cell(cell const& item, bool first, std::size_t gap)
    {
        std::string const text = symbol(item);
        out_.append((first ? 1 : 1 + gap) + width_ - std::min(width_, text.size()), ' ');
        out_ += paint(text, item);
        seen_.push_back(item);
        if (!first)
            seen_gaps_.push_back(gap);
    }

    pu_set pus_of(std::vector<core_list> const& row) const
    {
        pu_set all;
        for (core_list const& cores : row)
            all |= layout_.pus_of(cores);
        return all;
    }

    std::string node_text(std::size_t n) const
    {
        return "NUMA node " + std::to_string(host_.nodes[n].os_index) + ": " + layout_.memory_text(n);
    }

    std::string gpu_text(std::size_t g) const
    {
        topology::gpu const& device = host_.gpus[g];
        std::string const space = device.pci.empty() || device.name.empty() ? "" : " ";
        return printable("GPU " + std::to_string(g) + ": " + device.pci + space + device.name);
    }

    // "packages 0-63, NUMA nodes 0-63, 1 core each: 8 GiB of DRAM, L3 of 4 MiB".
    std::string title(section const& s) const
    {
        block const& b = s.blocks.front();
        index_set packages, nodes;
        for (block const& item : s.blocks) {
            packages.insert(item.package);
            if (topology::numa_node const* const node =
                    item.node < host_.nodes.size() ? &host_.nodes[item.node] : nullptr)
                nodes.insert(node->os_index);
        }
        std::string text = std::string(packages.size() == 1 ? "package " : "packages ") + to_list(packages);
        std::string const per_block = s.folded() ? ", " + plural(b.cores.size(), "core") + " each" : "";
        if (host_.nodes.empty())
            return text + per_block;
        if (nodes.empty())
            return text + per_block + ", no local memory";
        if (nodes.size() > 1)
            return text + ", NUMA nodes " + to_list(nodes) + per_block + ": " + layout_.memory_text(b.node);
        std::size_t users = 0;
        bool above = false;
        for (block const& other : layout_.blocks())
            if (other.node == b.node) {
                above = above || (users == 0 && other.cores != b.cores);
                ++users;
            }
        text += per_block + ", ";
        if (above)
            return text + "NUMA node " + to_list(nodes) + " (as above)";
        return text + node_text(b.node) + (users > s.blocks.size() ? ", for " + plural(users, "package") : "");
    }

    void draw_section(section const& s)
    {
        block const& b = s.blocks.front();
        out_ += wrapped("", title(s) + layout_.caches_text(b));
        for (std::size_t const n : layout_.other_nodes(b))
            out_ += wrapped("  and ", node_text(n));
        for (std::size_t const g : layout_.gpus(b))
            out_ += wrapped("  and ", gpu_text(g));
        bool const bars = s.folded() && b.cores.size() > 1;
        bool const next_package = s.folded() && b.package != s.blocks[1].package;
        package_bars_ = package_bars_ || (bars && next_package);
        node_bars_ = node_bars_ || (bars && !next_package);
        for (std::vector<core_list> const& row : s.rows) {
            label("PU " + list_of(pus_of(row), label_columns));
            for (core_list const& cores : row)
                for (std::size_t const c : cores) {
                    bool const first = c == cores.front();
                    if (first && bars && &cores != &row.front())
                        out_ += " |";
                    draw_cell(cells_[c], first && (&cores == &row.front() || s.folded()), layout_.gap(c));
                }
            out_ += "\n";
            if (!host_.hybrid())
                continue;
            label("speed");
            for (core_list const& cores : row)
                for (std::size_t const c : cores) {
                    bool const first = c == cores.front();
                    if (first && bars && &cores != &row.front())
                        out_ += " |";
                    std::string const speed = std::to_string(host_.cores[c].efficiency);
                    out_.append((first ? 1 : 1 + layout_.gap(c)) + width_ - std::min(width_, speed.size()), ' ');
                    out_ += speed;
                }
            out_ += "\n";
        }
    }

    // The core of an offline PU is unknown.
    std::vector<pu_set> rows_of_offline() const
    {
        std::vector<unsigned> const all = host_.offline.members();
        std::size_t const step = per_row(all.size(), (cell_columns + 1) / (width_ + 1));
        std::vector<pu_set> rows;
        for (std::size_t k = 0; k < all.size(); ++k) {
            if (k % step == 0)
                rows.emplace_back();
            rows.back().insert(all[k]);
        }
        return rows;
    }
    void draw_offline()
    {
        if (host_.offline.empty())
            return;
        out_ += "\noffline PUs, of these or of other cores\n";
        for (pu_set const& row : rows_of_offline()) {
            label("PU " + list_of(row, label_columns));
            for (std::size_t k = 0; k < row.size(); ++k)
                draw_cell({owner::offline}, k == 0, 0);
            out_ += "\n";
        }
    }

    // Memory and GPUs that are near no block, or near several.
    void draw_elsewhere()
    {
        std::string lines;
        for (std::size_t n = 0; n < host_.nodes.size(); ++n)
            if (pu_set const& pus = host_.nodes[n].pus; !layout_.has_block(n) && layout_.blocks_near(pus).size() != 1)
                lines += wrapped("  ", node_text(n) + (pus.empty() ? ", near no core" : near_text(pus)));
        for (std::size_t g = 0; g < host_.gpus.size(); ++g)
            if (pu_set const& pus = host_.gpus[g].pus; layout_.blocks_near(pus).size() != 1)
                lines += wrapped("  ", gpu_text(g) + near_text(pus));
        if (!lines.empty())
            out_ += "\nnear none of these, or near several\n" + lines;
    }
    std::string near_text(pu_set const& pus)
    {
        return pus.includes(host_.pus()) ? ", as near to one core as to another" : ", near " + pus_text(pus);
    }

    void draw_legend()
    {
        std::sort(seen_.begin(), seen_.end(),
                  [](cell const& a, cell const& b) { return std::pair(a.user, a.rank) < std::pair(b.user, b.rank); });
        seen_.erase(
            std::unique(seen_.begin(), seen_.end(), [](cell const& a, cell const& b) { return a.user == b.user; }),
            seen_.end());
        std::vector<std::pair<std::string, std::string>> entries; // plain, and as it is printed
        auto const add = [&](cell const& item, std::string const& meaning) {
            entries.emplace_back(symbol(item) + " " + meaning, paint(symbol(item), item) + " " + meaning);
        };
        for (cell const& item : seen_)
            switch (item.user) {
            case owner::optimizer: add(item, "optimizer (Adam) of rank " + std::to_string(item.rank)); break;
            case owner::host: add(item, "host framework of rank " + std::to_string(item.rank)); break;
            case owner::several_ranks: add(item, "shared by several ranks"); break;
            case owner::another_rank: add(item, "another rank's"); break;
            case owner::no_rank: add(item, "usable, given to no rank"); break;
            case owner::not_allowed: add(item, "not allowed"); break;
            case owner::offline: add(item, "offline"); break;
            }
        bool const l2 = std::count(seen_gaps_.begin(), seen_gaps_.end(), 1u) != 0;
        bool const l3 = std::count(seen_gaps_.begin(), seen_gaps_.end(), 2u) != 0;
        auto const note = [&](std::string const& text) { entries.emplace_back(text, text); };
        if (l2 || l3)
            note(l2 && l3 ? "gap: another L2, wide gap: another L3" : l2 ? "gap: another L2" : "gap: another L3");
        if (package_bars_ || node_bars_)
            note(package_bars_ ? "|: another package" : "|: another NUMA node");
        if (host_.pus().size() != host_.cores.size())
            note("a cell is a core with all its PUs");
        if (host_.hybrid()) {
            unsigned most = 0;
            for (topology::core const& item : host_.cores)
                most = std::max(most, item.efficiency);
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

    void draw_header()
    {
        std::size_t const pus = host_.pus().size();
        out_ += wrapped("machine  ", printable(host_.source));
        out_ += wrapped("         ", plural(host_.packages.size(), "package") + ", " +
                                         plural(host_.nodes.size(), "NUMA node") + ", " +
                                         plural(host_.cores.size(), "core") + ", " + plural(pus, "PU") +
                                         (host_.offline.empty() ? ""
                                                                : " and " + std::to_string(host_.offline.size()) +
                                                                      " offline (" + list_of(host_.offline) + ")"));
        out_ += wrapped("allowed  ", picture_.usable.size() == pus
                                         ? "all PUs"
                                         : pus_text(picture_.usable) + " (" + std::to_string(picture_.usable.size()) +
                                               " of " + std::to_string(pus) + ")");
        if (std::string const quota = quota_text(host_); !quota.empty())
            out_ += wrapped("         ", printable(quota + " (" + host_.quota.source + ")"));
        out_ += wrapped("ranks    ", std::to_string(picture_.ranks.size()) + ", " + picture_.ranks_source + unequal());
        draw_idle();
        out_ += "\n";
    }

    // Returns a note if the ranks' numbers of cores differ by more than one.
    std::string unequal() const
    {
        std::size_t least = host_.cores.size();
        std::size_t most = 0;
        for (rank_cores const& r : picture_.ranks) {
            auto const count = static_cast<std::size_t>(
                std::count_if(host_.cores.begin(), host_.cores.end(), [&](topology::core const& c) {
                    return c.pus.intersects(r.adam_pus) || c.pus.intersects(r.host_pus);
                }));
            least = std::min(least, count);
            most = std::max(most, count);
        }
        return most - least <= 1 ? "" : "; unequal: of " + std::to_string(least) + " to " + plural(most, "core");
    }

    // Usable cores without a rank.
    void draw_idle()
    {
        std::size_t count = 0;
        std::size_t all = 0;
        pu_set pus;
        node_set nodes;
        for (std::size_t c = 0; c < host_.cores.size(); ++c) {
            if (!host_.cores[c].pus.intersects(picture_.pool))
                continue;
            ++all;
            if (cells_[c].user != owner::no_rank)
                continue;
            ++count;
            pus |= host_.cores[c].pus;
            if (topology::numa_node const* const memory = host_.memory_of(host_.cores[c]))
                nodes.insert(memory->os_index);
        }
        if (count == 0)
            return;
        std::string text = std::to_string(count) + " of " + plural(all, "core") + ": " + pus_text(pus);
        if (!nodes.empty())
            text += std::string(", in NUMA node") + (nodes.size() == 1 ? " " : "s ") + to_list(nodes);
        out_ += wrapped("idle     ", text + ", where no rank is");
    }

    // Each rank's PUs in columns, and the explanation.
    void draw_ranks()
    {
        struct line {
            rank_cores const& rank;
            std::string optimizer, host, memory;
        };
        std::vector<line> lines;
        std::size_t optimizer_width = 0;
        std::size_t host_width = 0;
        for (rank_cores const& r : picture_.ranks) {
            if (picture_.only_rank && r.rank != *picture_.only_rank)
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
        std::size_t const name_width = std::to_string(lines.back().rank.rank).size();
        for (auto const& [r, optimizer, host, memory] : lines) {
            std::string const number = std::to_string(r.rank);
            std::string const prefix = "rank " + std::string(name_width - number.size(), ' ') + number + "  ";
            auto const padded = [](std::string text, std::size_t width) {
                return text.append(width - text.size() + 3, ' ');
            };
            std::string const text =
                padded(optimizer, optimizer_width) + (memory.empty() ? host : padded(host, host_width) + memory);
            std::string const indent(prefix.size(), ' ');
            out_ += paint(prefix, {owner::optimizer, r.rank});
            if (prefix.size() + text.size() <= text_columns)
                out_ += text + "\n";
            else // a separate line for each
                out_ += wrapped(indent, optimizer).substr(indent.size()) + wrapped(indent, host) +
                        (memory.empty() ? "" : wrapped(indent, memory));
            // The first line already has the rank.
            std::string why = printable(r.why);
            std::string const known = "rank " + number + " of " + std::to_string(picture_.ranks.size()) + " has ";
            if (why.starts_with(known))
                why.erase(0, known.size());
            out_ += wrapped(indent, why);
        }
    }

    picture const& picture_;
    machine const& host_;
    std::size_t width_; // of a cell
    cores_layout layout_;
    std::vector<cell> cells_; // of each core
    std::vector<cell> seen_;  // drawn cells, for the legend
    std::vector<std::size_t> seen_gaps_;
    bool package_bars_ = false; // whether bars between packages were drawn
    bool node_bars_ = false;
    std::size_t label_width_ = 0;
    bool strides_ = false; // whether a list with a stride was drawn
    std::string out_;
};

} // namespace

std::string draw(picture const& content)
{
    return drawer(content).draw();
}

} // namespace cli
