// Double binary tree, pipelined. N bytes of tensor, p ranks, two trees of height H over all ranks, k segments of each half.
//
//                steps         bytes that a rank sends   cost
//   all-reduce   2 H + k - 1   2 N at most               (2 H + k - 1) (α + 3 o + 2 N/k β) at most, H ≤ ⌈log2 p⌉
//
// One half of the tensor is reduced up and broadcast down the first tree, the other half the second. Who is inside one tree
// is a leaf of the other (a root with a single child excepted), so every rank sends and receives about N/2 times four, and all
// links are busy both ways: close to 2 N β for many segments, with logarithmic α. Best for large tensors among many ranks.
// Segment s leaves depth d on its way up in step s + H - d + 1 and on its way down in step s + H + d + 1 (counted from 1).
// Values are added as (lower child ⊕ own) ⊕ upper child: the same bits on all ranks; 16-bit floats are rounded at each rank.
// Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "starling/comm/collective/elements.h"
#include "starling/comm/remote_team.h"

namespace starling {

struct Tree {
  std::vector<int> parent;                 // of each rank; -1: the root
  std::vector<int> depth;                  // 0: the root
  std::vector<std::vector<int>> children;  // ascending, two at most
  int height = 0;                          // the greatest depth
};

// For p ranks.
std::array<Tree, 2> double_trees(int p);

// Segments of each half of a tensor of `bytes`: as many as keep a segment at kTreeSegmentBytes or more, 64 at most.
constexpr size_t kTreeSegmentBytes = 128 * 1024;
int tree_segments(size_t bytes);

void double_tree_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements);

}  // namespace starling
