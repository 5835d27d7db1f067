// SPDX-License-Identifier: Apache-2.0
// The sum of doubles, exact and rounded once, by another way than the library's: parts that do not overlap (Shewchuk,
// "Adaptive precision floating-point arithmetic and fast robust geometric predicates", 1997).
#pragma once

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace test {

class exact_sum {
public:
    void add(double x)
    {
        std::size_t kept = 0;
        for (double part : parts_) {
            if (std::fabs(x) < std::fabs(part))
                std::swap(x, part);
            double const sum = x + part;
            double const error = part - (sum - x);
            if (error != 0)
                parts_[kept++] = error;
            x = sum;
        }
        parts_.resize(kept);
        parts_.push_back(x);
    }
    [[nodiscard]] double rounded() const
    {
        if (parts_.empty())
            return 0;
        std::size_t i = parts_.size() - 1;
        double sum = parts_[i];
        double error = 0;
        while (i > 0 && error == 0) {
            double const before = sum;
            sum = before + parts_[--i];
            error = parts_[i] - (sum - before);
        }
        // A tie that something below decides.
        if (i > 0 && error != 0 && (error < 0) == (parts_[i - 1] < 0)) {
            double const twice = 2 * error;
            double const other = sum + twice;
            if (other - sum == twice)
                sum = other;
        }
        return sum;
    }

private:
    std::vector<double> parts_; // from the smallest to the largest
};

} // namespace test
