// SPDX-License-Identifier: Apache-2.0
// The models that `adamant plan` knows, as lists of their parameter tensors, and how to describe others.
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

// What a plan needs to know of a model. A number that is not known is 0, and what depends on it is left out.
struct model {
    std::string name;
    std::string source;                // of the shapes
    std::vector<model_tensor> tensors; // in the order of the model, which is the order in which forward uses them
    bool has_shapes = true;            // else a tensor stands for all of a layer
    std::size_t params = 0;
    std::size_t computed_params = 0; // that a token meets in a matrix product: active experts, no lookup of embeddings
    std::size_t layers = 0;
    std::size_t layer_params = 0;   // of the largest layer
    std::size_t largest_tensor = 0; // elements
    std::size_t ends_params = 0;    // of the larger of the embedding and the output layer
    std::size_t hidden = 0;
    std::size_t vocab = 0;
    std::size_t query = 0;        // elements of all heads' queries, for one token
    std::size_t key_value = 0;    // of keys and values together
    std::size_t feed_forward = 0; // of one projection of the MLP, in all experts that a token goes through
};

// Names are compared without case and punctuation; a folder before and -Instruct or -Base after mean nothing. Throws
// usage_error, with the names there are and those that are like it.
model known_model(std::string const& name);

struct described_model {
    std::size_t params = 0;
    std::size_t active_params = 0; // 0: all
    std::size_t layers = 0;
    std::size_t hidden = 0;
    std::size_t vocab = 0;
};
// Equal layers, and an embedding and an output layer where there is a vocabulary. Throws usage_error for what cannot
// be.
model make_model(described_model const& from);

// A file with a line for each tensor: its name and its dimensions. The rest is as the options say. Throws usage_error.
model read_model(std::string const& path, described_model const& rest);

std::vector<std::string> model_names();

// Names, numbers of parameters and sources, as lines of text.
std::string list_of_models();

} // namespace cli
