// The C function of the plug-in (starling/comm/mpi/mpi_plugin.h).
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <mutex>
#include <string>

#include "plugins/mpi/communicator.h"

namespace starling {
namespace {

class Library final : public MpiLibrary {
 public:
  ~Library() override;
  // Returns an empty text, or why MPI cannot be used. Collective over all ranks.
  std::string open();

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int greatest_tag() const override { return greatest_tag_; }
  std::string host_name() const override;
  std::string version() const override;
  MpiCommunicator& world() override { return *world_; }
  std::unique_ptr<MpiCommunicator> make(std::span<const int> ranks, int tag, std::string& error) override;
  void abandon() override { abandoned_ = true; }

 private:
  std::string begin();

  std::atomic<bool> abandoned_ = false;
  bool begins_ = false;  // this object initialized MPI and therefore finalizes it; false if the program did
  int rank_ = 0, size_ = 1;
  int greatest_tag_ = 32767;
  std::mutex making_;  // some MPIs cannot make communicators in several threads at once
  MpiOperations operations_;
  std::unique_ptr<Communicator> world_;
};

std::string Library::begin() {
  int ended = 0, begun = 0, level = MPI_THREAD_SINGLE;
  MPI_Finalized(&ended);
  if (ended != 0) return "MPI has been ended in this process and cannot begin again";
  MPI_Initialized(&begun);
  begins_ = begun == 0;
  const int code =
      begins_ ? MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level) : MPI_Query_thread(&level);
  if (code != MPI_SUCCESS) return mpi_fault(code);
  if (level >= MPI_THREAD_MULTIPLE) return "";
  return begins_
             ? "this MPI does not let several threads call it (MPI_THREAD_MULTIPLE); use another build of it"
             : "the program has begun MPI without MPI_THREAD_MULTIPLE, but several threads will call it; "
               "begin it by MPI_Init_thread with that level";
}

std::string Library::open() {
  if (std::string fault = begin(); !fault.empty()) return fault;
  MPI_Comm all = MPI_COMM_NULL;
  if (std::string fault = mpi_fault(MPI_Comm_dup(MPI_COMM_WORLD, &all)); !fault.empty()) return fault;
  world_ = std::make_unique<Communicator>(all, operations_, abandoned_);
  MPI_Comm_rank(all, &rank_);
  MPI_Comm_size(all, &size_);
  int known = 0;
  void* greatest = nullptr;
  if (MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&greatest), &known) == MPI_SUCCESS &&
      known != 0)
    greatest_tag_ = *static_cast<int*>(greatest);
  return operations_.make();
}

Library::~Library() {
  if (abandoned_) return;
  world_.reset();
  operations_.free();
  if (begins_) MPI_Finalize();
}

std::string Library::host_name() const {
  std::array<char, MPI_MAX_PROCESSOR_NAME + 1> name{};
  int length = 0;
  MPI_Get_processor_name(name.data(), &length);
  return name.data();
}

std::string Library::version() const {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING + 1> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  std::string version = text.data();
  version.erase(std::min(version.find_first_of(",\n"), version.size()));
  // The version text of MPICH has columns.
  const auto two_blanks = [](char a, char b) { return std::isspace(a) != 0 && std::isspace(b) != 0; };
  version.erase(std::unique(version.begin(), version.end(), two_blanks), version.end());
  return version;
}

std::unique_ptr<MpiCommunicator> Library::make(std::span<const int> ranks, int tag, std::string& error) {
  const std::lock_guard lock(making_);
  MPI_Group world = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  int code = MPI_Comm_group(world_->handle(), &world);
  if (code == MPI_SUCCESS) code = MPI_Group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &some);
  if (code == MPI_SUCCESS) code = MPI_Comm_create_group(world_->handle(), some, tag, &made);
  if (some != MPI_GROUP_NULL) MPI_Group_free(&some);
  if (world != MPI_GROUP_NULL) MPI_Group_free(&world);
  error = mpi_fault(code);
  if (code != MPI_SUCCESS) return nullptr;
  return std::make_unique<Communicator>(made, operations_, abandoned_);
}

}  // namespace
}  // namespace starling

extern "C" starling::MpiLibrary* starling_open_mpi(const starling::MpiOpening* opening, char* error,
                                                   size_t error_bytes) {
  using namespace starling;
  std::string why = "the engine is of another build than the program; build and install both together";
  if (opening->abi == kMpiPluginAbi) {
    auto library = std::make_unique<Library>();
    why = library->open();
    if (why.empty()) return library.release();
    library->abandon();
  }
  const size_t length = std::min(why.size(), error_bytes - 1);
  std::memcpy(error, why.data(), length);
  error[length] = '\0';
  return nullptr;
}
