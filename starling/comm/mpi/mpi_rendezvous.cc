#include "starling/comm/mpi/mpi_rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr int kRendezvousTags = 32767;  // every MPI has at least this many

// Returns a hash of the name (FNV-1a) as a tag.
int tag_of_group(const std::string& name) {
  uint32_t hash = 2166136261u;
  for (const unsigned char c : name) hash = (hash ^ c) * 16777619u;
  return static_cast<int>(hash % kRendezvousTags);
}

// Word is the message that ranks send to each other: the name of the group that they are about to make.
struct Word {
  std::array<char, 256> group{};
  explicit Word(const std::string& name = "") {
    std::memcpy(group.data(), name.data(), std::min(name.size(), group.size() - 1));
  }
};

class WorldRendezvous {
 public:
  WorldRendezvous(MpiLibrary& library, const GroupSetup& setup, MpiPatience& patience)
      : world_(library.world()), setup_(setup), patience_(patience), own_(setup.name) {}

  int tag() const { return tag_of_group(setup_.name); }

  void tell(int rank) {
    const std::string what = fmt::format("rendezvous with rank {} of group '{}'", rank, setup_.name);
    patience_.wait(*world_.send(&own_, sizeof(own_), in_world(rank), tag()), what, late(rank));
  }

  void hear(int rank) {
    Word word;
    const std::string what = fmt::format("rendezvous with rank {} of group '{}'", rank, setup_.name);
    patience_.wait(*world_.receive(&word, sizeof(word), in_world(rank), tag()), what, late(rank));
    if (word.group != own_.group)
      throw CommError(
          fmt::format("rank {} makes group '{}' while this rank makes '{}'; every rank must make the same "
                      "groups in the same order",
                      rank, word.group.data(), setup_.name),
          rank);
  }

 private:
  int in_world(int rank) const { return setup_.world_ranks[static_cast<size_t>(rank)]; }
  MpiWatch late(int rank) const {
    return {.late = [this, rank]() -> Lateness {
      return {fmt::format("rank {} did not join group '{}'", rank, setup_.name), rank};
    }};
  }

  MpiCommunicator& world_;
  const GroupSetup& setup_;
  MpiPatience& patience_;
  const Word own_;
};

}  // namespace

int meet_over_mpi(MpiLibrary& library, const GroupSetup& setup, MpiPatience& patience) {
  WorldRendezvous rendezvous(library, setup, patience);
  const int size = static_cast<int>(setup.world_ranks.size());
  if (setup.rank == 0) {
    for (int r = 1; r < size; ++r) rendezvous.hear(r);
    for (int r = 1; r < size; ++r) rendezvous.tell(r);
  } else {
    rendezvous.tell(0);
    rendezvous.hear(0);
  }
  return rendezvous.tag();
}

}  // namespace starling
