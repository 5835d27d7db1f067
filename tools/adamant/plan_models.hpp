// SPDX-License-Identifier: Apache-2.0
// The models that `adamant plan` knows, as lists of their parameter tensors, and descriptions of others.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cli {

struct model_tensor {
    std::string name;
    std::vector<std::size_t> dims;
    std::size_t elems;
};

// The properties of a model that a plan needs. An unknown number is 0, and a plan omits the items that depend on it.
struct model {
    std::string name;
    std::string source;                // of the shapes
    std::vector<model_tensor> tensors; // in the order of the model, which is the order in which forward uses them
    bool has_shapes = true;            // false: a tensor stands for a whole layer
    std::size_t params = 0;
    std::size_t computed_params = 0; // in a token's matrix products: active experts, no lookup of embeddings
    std::size_t layers = 0;
    std::size_t layer_params = 0;   // of the largest layer
    std::size_t largest_tensor = 0; // elements
    std::size_t ends_params = 0;    // of the larger of the embedding and the output layer
    std::size_t hidden = 0;
    std::size_t vocab = 0;
    std::size_t query = 0;        // elements of all heads' queries, for one token
    std::size_t key_value = 0;    // of keys and values together
    std::size_t feed_forward = 0; // of one projection of the MLP, in all active experts of a token
};

// Finds a model by its name. Case, punctuation, a folder, and the endings -Instruct and -Base are ignored. Throws
// usage_error with all known names and the similar ones.
model known_model(std::string const& name);

struct described_model {
    std::size_t params = 0;
    std::size_t active_params = 0; // 0: all
    std::size_t layers = 0;
    std::size_t hidden = 0;
    std::size_t vocab = 0;
};
// Makes a model of equal layers, with an embedding and an output layer if there is a vocabulary. Throws usage_error for
// impossible sizes.
model make_model(described_model const& description);

// Reads a file with a line for each tensor: its name and its dimensions. description: from the options, for the
// properties that the file does not have. Throws usage_error.
model read_model(std::string const& path, described_model const& description);

std::vector<std::string> model_names();

// Names, numbers of parameters and sources, as lines of text.
std::string list_of_models();

} // namespace cli
