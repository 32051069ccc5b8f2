// Sums, maxima and means of the processes' parts.

#ifndef TERNGRAD_CC_NET_REDUCE_H_
#define TERNGRAD_CC_NET_REDUCE_H_

#include <cstdint>
#include <vector>

namespace terngrad {

// Adds n values of each part in the tree of `tree_sum`
// (terngrad/exchange/exchange.py): neighbours pairwise, until one is left.
void TreeSum(const std::vector<const float*>& parts, int64_t n, float* total);

// The same with the largest value instead of the sum; NaN where a part has NaN.
void Maxima(const std::vector<const float*>& parts, int64_t n, float* largest);

// Writes the means of n float16, which are added as floats in the same tree.
void MeanOfHalves(const std::vector<const uint8_t*>& parts, int64_t n,
                  uint8_t* mean);

// The value of a float16, and the float16 nearest to a value, to even in ties.
float FloatOfHalf(uint16_t half);
uint16_t HalfOfFloat(float value);

}  // namespace terngrad

#endif  // TERNGRAD_CC_NET_REDUCE_H_
