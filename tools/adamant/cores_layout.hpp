// SPDX-License-Identifier: Apache-2.0
// Layout of the drawing of `adamant cores`: blocks of cores and their rows.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <adamant/cores.hpp>

namespace cli {

inline constexpr std::size_t cell_columns = 76; // width of a row's cells: 24 cores and their gaps

using core_list = std::vector<std::size_t>; // indexes in machine::cores

// Cores of one package that use the same memory.
struct block {
    unsigned package;
    unsigned node; // index in machine::nodes, or no_node
    core_list cores;
};

// Blocks under one title: one block, or many small equal ones.
struct section {
    std::vector<block> blocks;
    std::vector<std::vector<core_list>> rows; // each row has one list, or one for each of its blocks
    [[nodiscard]] bool folded() const { return blocks.size() > 1; }
};

class cores_layout {
public:
    // cell_width: columns of a cell, without the blank before it.
    cores_layout(adamant::machine const& machine, std::size_t cell_width);

    [[nodiscard]] std::vector<section> const& sections() const { return sections_; }
    [[nodiscard]] std::vector<block> const& blocks() const { return blocks_; }
    // Returns the additional blanks before a core: one if it does not share its L2 cache with its neighbor but some
    // cores share theirs, two if it has another L3 cache.
    [[nodiscard]] std::size_t gap(std::size_t core) const { return gaps_[core]; }
    [[nodiscard]] adamant::pu_set pus_of(core_list const& list) const;

    // Returns the blocks that have PUs of a set.
    [[nodiscard]] std::vector<block const*> blocks_near(adamant::pu_set const& pus) const;
    // Returns whether some block has this index in machine::nodes.
    [[nodiscard]] bool has_block(std::size_t node) const;

    // Describes a node's memory: "8 GiB of DRAM, which this process may not use".
    [[nodiscard]] std::string memory_text(std::size_t node) const;
    // Describes the L3 caches of a block: ", L3 of 32 MiB", ", 4 L3 of 16 MiB".
    [[nodiscard]] std::string caches_text(block const& b) const;
    // Returns the NUMA nodes and GPUs that are near only this block and are not its own memory.
    [[nodiscard]] std::vector<std::size_t> other_nodes(block const& b) const;
    [[nodiscard]] std::vector<std::size_t> gpus(block const& b) const;

private:
    void find_blocks();
    void find_gaps();
    void find_sections();
    [[nodiscard]] std::size_t columns(core_list const& row) const;
    [[nodiscard]] std::vector<core_list> rows_of(block const& b) const;
    [[nodiscard]] bool can_share_title(block const& a, block const& b) const;

    adamant::machine const& host_;
    std::size_t width_;
    std::vector<block> blocks_;
    std::vector<std::size_t> gaps_; // before each core
    std::vector<section> sections_;
};

} // namespace cli
