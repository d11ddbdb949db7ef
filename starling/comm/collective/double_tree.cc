#include "starling/comm/collective/double_tree.h"

#include <algorithm>

namespace starling {
namespace {

// Returns the parent in an in-order binary tree over ranks 1 … p - 1. A rank's height is its lowest set
// bit. Rank 0 is the root above this tree.
int in_order_parent(int rank, int p) {
  if (rank == 0) return -1;
  const int bit = rank & -rank;
  const int up = (rank ^ bit) | (bit << 1);
  return up < p ? up : rank ^ bit;
}

Tree make_tree(int p, bool second) {
  // The second tree is the mirror image of the first if p is even, so that odd ranks, the leaves, change
  // places with even ranks. If p is odd, it is the first tree shifted by one rank.
  const auto turned = [&](int r) { return !second ? r : p % 2 == 0 ? p - 1 - r : (r + 1) % p; };
  Tree tree;
  tree.parent.assign(p, -1);
  tree.depth.assign(p, 0);
  tree.children.resize(p);
  for (int r = 0; r < p; ++r) {
    const int up = in_order_parent(r, p);
    if (up < 0) continue;
    tree.parent[turned(r)] = turned(up);
    tree.children[turned(up)].push_back(turned(r));
  }
  for (int r = 0; r < p; ++r) {
    for (int up = tree.parent[r]; up >= 0; up = tree.parent[up]) ++tree.depth[r];
    tree.height = std::max(tree.height, tree.depth[r]);
    std::sort(tree.children[r].begin(), tree.children[r].end());
  }
  return tree;
}

// Half is one half of the tensor on its tree, as this rank sees it.
struct Half {
  const Tree& tree;
  std::vector<Bytes> segments;
  std::byte* arrived;  // memory for one segment of each child
  size_t largest;

  bool has(int segment) const { return segment >= 0 && segment < static_cast<int>(segments.size()); }
};

// Queues what this rank sends and receives in `step`, counted from 1. Returns whether anything was queued.
// Both ends of a connection queue their messages in the same order: the first half before the second, up
// before down.
bool queue_step(RemoteTeam& team, const Half& half, int step) {
  const int me = team.me(), depth = half.tree.depth[me], height = half.tree.height;
  const int leaving = step - 1 - (height - depth), arriving = leaving + 1;
  const int given = step - 1 - height - depth, taken = given + 1;
  bool any = false;
  if (half.tree.parent[me] >= 0 && half.has(leaving)) {
    team.send(half.tree.parent[me], half.segments[leaving].data(), half.segments[leaving].size());
    any = true;
  }
  for (size_t i = 0; i < half.tree.children[me].size() && half.has(arriving); ++i) {
    team.recv(half.tree.children[me][i], half.arrived + i * half.largest, half.segments[arriving].size());
    any = true;
  }
  for (size_t i = 0; i < half.tree.children[me].size() && half.has(given); ++i) {
    team.send(half.tree.children[me][i], half.segments[given].data(), half.segments[given].size());
    any = true;
  }
  if (half.tree.parent[me] >= 0 && half.has(taken)) {
    team.recv(half.tree.parent[me], half.segments[taken].data(), half.segments[taken].size());
    any = true;
  }
  return any;
}

// Adds what the children have sent in `step`.
void add_step(const RemoteTeam& team, const Half& half, int step, const Elements& elements) {
  const auto& children = half.tree.children[team.me()];
  const int arriving = step - half.tree.height + half.tree.depth[team.me()];
  if (children.empty() || !half.has(arriving)) return;
  const Bytes segment = half.segments[arriving];
  std::vector<const void*> sources;
  for (size_t i = 0; i < children.size(); ++i) {
    if (sources.size() == i && children[i] > team.me()) sources.push_back(segment.data());
    sources.push_back(half.arrived + i * half.largest);
  }
  if (sources.size() == children.size()) sources.push_back(segment.data());
  reduce_parts(sources, segment.data(), segment.size(), elements, half.tree.parent[team.me()] < 0);
}

}  // namespace

std::array<Tree, 2> double_trees(int p) {
  return {make_tree(p, false), make_tree(p, true)};
}

int tree_segments(size_t bytes) {
  return static_cast<int>(std::clamp<size_t>(bytes / 2 / kTreeSegmentBytes, 1, 64));
}

void double_tree_all_reduce(RemoteTeam& team, void* data, size_t count, const Elements& elements) {
  if (team.size() == 1) return;
  const std::array<Tree, 2> trees = double_trees(team.size());
  const int segments = tree_segments(count * size_of(elements.type));
  const std::vector<Bytes> halves = divide(data, count, elements.type, 2);
  std::vector<Half> parts;
  size_t largest = 0;
  for (int i = 0; i < 2; ++i) {
    parts.push_back(
        {trees[i],
         divide(halves[i].data(), halves[i].size() / size_of(elements.type), elements.type, segments),
         nullptr, 0});
    for (const Bytes segment : parts.back().segments) largest = std::max(largest, segment.size());
  }
  std::byte* scratch = team.scratch(4 * largest);
  for (int i = 0; i < 2; ++i) {
    parts[i].arrived = scratch + 2 * static_cast<size_t>(i) * largest;
    parts[i].largest = largest;
  }
  for (int step = 1; step < 2 * trees[0].height + segments; ++step) {
    bool any = false;
    for (const Half& half : parts) any = queue_step(team, half, step) || any;
    if (!any) continue;
    team.move();
    for (const Half& half : parts) add_step(team, half, step, elements);
  }
}

}  // namespace starling
