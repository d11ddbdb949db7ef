// Double binary tree, pipelined, for N bytes of tensor and p ranks.
// There are two trees of height H over all ranks. Each half of the tensor is cut into k segments.
//
//                steps         bytes that a rank sends   cost
//   all-reduce   2 H + k - 1   2 N at most               (2 H + k - 1) (α + 3 o + 2 N/k β) at most
//
// H is at most ⌈log2 p⌉. The first tree reduces one half of the tensor upward and broadcasts it
// downward. The second tree does so with the other half.
// An inner rank of one tree is a leaf of the other tree (a root with a single child excepted). Every rank
// therefore sends and receives about N/2 bytes four times, and all links are busy both ways. For many
// segments the cost is close to 2 N β, with a logarithmic number of α.
// Use it for large tensors among many ranks.
// A rank at depth d sends segment s upward in step s + H - d + 1. It sends segment s downward in step
// s + H + d + 1. Steps are counted from 1, and segments from 0. Values are added as (lower child ⊕ own) ⊕
// upper child, so all ranks get the same bits. Each rank rounds 16-bit floats.
// Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "starling/comm/collective/elements.h"
#include "starling/comm/network/remote_team.h"

namespace starling {

// Tree is a tree over the ranks 0 … p - 1.
struct Tree {
  std::vector<int> parent;                 // of each rank; -1: this rank is the root
  std::vector<int> depth;                  // of each rank; 0: this rank is the root
  std::vector<std::vector<int>> children;  // of each rank, ascending, at most two
  int height = 0;                          // the greatest depth
};

// Returns the two trees for p ranks.
std::array<Tree, 2> double_trees(int p);

constexpr size_t kTreeSegmentBytes = 128 * 1024;
// Returns the number of segments of each half of a tensor of `bytes`. A segment has at least
// kTreeSegmentBytes, unless there is only one. There are at most 64 segments.
int tree_segments(size_t bytes);

// Reduces `count` elements in place.
void double_tree_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements);

}  // namespace starling
