// SPDX-License-Identifier: Apache-2.0
// What goes where in the drawing of `adamant cores`: which cores stand together, and in which rows.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <adamant/cores.hpp>

namespace cli {

inline constexpr std::size_t cell_columns = 76; // of the cells of a row: 24 cores and their gaps

using core_list = std::vector<std::size_t>; // places in machine::cores

// Cores of one package that use the same memory.
struct block {
    unsigned package;
    unsigned node; // place in machine::nodes, or no_node
    core_list cores;
};

// What is drawn under one title: a block, or many small ones that look alike.
struct section {
    std::vector<block> blocks;
    std::vector<std::vector<core_list>> rows; // each of one list, or of one for each of its blocks
    [[nodiscard]] bool folded() const { return blocks.size() > 1; }
};

class cores_layout {
public:
    // Cells have that many columns, besides the blank before each.
    cores_layout(adamant::machine const& machine, std::size_t cell_width);

    [[nodiscard]] std::vector<section> const& sections() const { return sections_; }
    [[nodiscard]] std::vector<block> const& blocks() const { return blocks_; }
    // Blanks before a core more than the one: one where its second-level cache is not its neighbour's and some cores
    // share theirs, two where the third-level cache is another.
    [[nodiscard]] std::size_t gap(std::size_t core) const { return gaps_[core]; }
    [[nodiscard]] adamant::pu_set pus_of(core_list const& list) const;

    // The blocks that have PUs of a set.
    [[nodiscard]] std::vector<block const*> blocks_near(adamant::pu_set const& pus) const;
    // Whether a place in machine::nodes is some block's.
    [[nodiscard]] bool is_a_blocks(std::size_t node) const;

    // A node's memory: "8 GiB of DRAM, which this process may not use".
    [[nodiscard]] std::string memory_text(std::size_t node) const;
    // The third-level caches of a block: ", L3 of 32 MiB", ", 4 L3 of 16 MiB".
    [[nodiscard]] std::string caches_text(block const& b) const;
    // The NUMA nodes and GPUs that are near a block alone and are not its own memory.
    [[nodiscard]] std::vector<std::size_t> other_nodes(block const& b) const;
    [[nodiscard]] std::vector<std::size_t> gpus(block const& b) const;

private:
    void find_blocks();
    void find_gaps();
    void find_sections();
    [[nodiscard]] std::size_t columns(core_list const& row) const;
    [[nodiscard]] std::vector<core_list> rows_of(block const& b) const;
    [[nodiscard]] bool alike(block const& a, block const& b) const;

    adamant::machine const& on_;
    std::size_t width_;
    std::vector<block> blocks_;
    std::vector<std::size_t> gaps_; // before each core
    std::vector<section> sections_;
};

} // namespace cli
