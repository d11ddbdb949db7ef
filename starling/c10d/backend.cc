#include "starling/c10d/backend.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "starling/base/error.h"
#include "starling/c10d/backend_calls.h"

namespace starling {
namespace {

// Returns the text with the word "timeout", for which programs look in PyTorch's messages.
std::string with_timeout_word(const std::string& text) {
  return text.find("timeout") != std::string::npos ? text : text + " (timeout)";
}

c10::intrusive_ptr<c10d::Backend::Options> options_of(const RendezvousOptions& rendezvous) {
  auto options = c10::make_intrusive<c10d::Backend::Options>("starling", rendezvous.group.timeout);
  options->group_name = rendezvous.name;
  options->global_ranks_in_group.assign(rendezvous.world_ranks.begin(), rendezvous.world_ranks.end());
  return options;
}

bool are_equal_to_places(const std::vector<int64_t>& ranks) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r] != static_cast<int64_t>(r)) return false;
  }
  return true;
}

// The parts of a coalesced operation. A callback of the last part completes the whole with the first error of
// its parts.
struct Coalesced {
  explicit Coalesced(size_t parts) : left(parts) {}
  std::mutex mutex;
  size_t left;               // guarded by mutex
  std::exception_ptr error;  // guarded by mutex
};

}  // namespace

StarlingBackend::StarlingBackend(std::shared_ptr<Group> group, RendezvousOptions rendezvous, StorePtr store)
    : c10d::Backend(group->rank(), group->size()),
      group_(std::move(group)),
      rendezvous_(std::move(rendezvous)),
      store_(std::move(store)),
      options_(options_of(rendezvous_)) {}

c10::intrusive_ptr<StarlingBackend> StarlingBackend::make(const StorePtr& store, int rank, int size,
                                                          const RendezvousOptions& rendezvous) {
  return c10::make_intrusive<StarlingBackend>(rendezvous_group(store, rank, size, rendezvous), rendezvous,
                                              store);
}

c10::intrusive_ptr<StarlingBackend> StarlingBackend::make_reconfigurable(
    int rank, int size, const RendezvousOptions& rendezvous) {
  return c10::make_intrusive<StarlingBackend>(rank, size, rendezvous, std::make_unique<LocalRendezvous>());
}

StarlingBackend::StarlingBackend(int rank, int size, RendezvousOptions rendezvous,
                                 std::unique_ptr<LocalRendezvous> point)
    : c10d::Backend(rank, size),
      point_(std::move(point)),
      rendezvous_(std::move(rendezvous)),
      options_(options_of(rendezvous_)) {
  options_->enable_reconfigure = true;
}

bool StarlingBackend::isInitialized() {
  const std::lock_guard lock(group_mutex_);
  return group_ != nullptr;
}

StarlingBackend::~StarlingBackend() {
  shutdown();
}

std::shared_ptr<Group> StarlingBackend::group() {
  const std::lock_guard lock(group_mutex_);
  if (group_) return group_;
  throw CommError(point_ ? "the backend starling has no group; call reconfigure()"
                         : "the backend starling has been shut down; make a new process group");
}

void StarlingBackend::setTimeout(std::chrono::milliseconds timeout) {
  if (timeout > rendezvous_.group.timeout) {
    TORCH_WARN("starling: a group's timeout cannot be raised: ", rendezvous_.group.timeout.count(),
               " ms remain; give the longer one when the group is made");
  }
  wait_limit_ = timeout.count();
  options_->timeout = timeout;
}

void StarlingBackend::abort() {
  hooks_->failing();
  const std::lock_guard lock(group_mutex_);
  if (group_) group_->abort("abort() of the process group was called");
}

void StarlingBackend::shutdown() {
  lanes_.close();  // no operation comes after the look
  const bool pending = lanes_.busy();
  std::shared_ptr<Group> last;
  {
    const std::lock_guard lock(group_mutex_);
    if (pending && group_)
      group_->abort(
          "the process group was shut down while operations were pending; call wait() on them first");
  }
  lanes_.stop();
  const std::lock_guard lock(group_mutex_);
  last.swap(group_);  // no other code uses the group any more; it ends with this scope
}

void StarlingBackend::guarded(const std::function<void()>& body) {
  const auto where = [this](const std::string& what) {
    if (are_equal_to_places(rendezvous_.world_ranks)) return what;
    return fmt::format("{} [group '{}' of the job's ranks {}]", what, rendezvous_.name,
                       fmt::join(rendezvous_.world_ranks, ", "));
  };
  try {
    body();
  } catch (const TimeoutError& error) {
    error_ = c10d::ErrorType::TIMEOUT;
    hooks_->failing();
    throw TimeoutError(with_timeout_word(where(error.what())), error.peer());
  } catch (const CommError& error) {
    error_ = c10d::ErrorType::COMM_ERROR;
    hooks_->failing();
    throw CommError(where(error.what()), error.peer());
  }
}

void StarlingBackend::check_rank(const char* operation, int64_t rank) const {
  if (rank >= 0 && rank < size_) return;
  throw Error(ErrorCode::kConfig,
              fmt::format("{}: rank {} does not exist in a group of {} ranks", operation, rank, size_));
}

bool StarlingBackend::note_coalesced(const c10::intrusive_ptr<StarlingWork>& work) {
  const std::lock_guard lock(coalesced_mutex_);
  if (coalesced_) coalesced_->push_back(work);
  return coalesced_.has_value();
}

void StarlingBackend::startCoalescing() {
  const std::lock_guard lock(coalesced_mutex_);
  if (coalesced_)
    throw Error(ErrorCode::kConfig, "startCoalescing was called twice; call endCoalescing() first");
  coalesced_.emplace();
}

StarlingBackend::WorkPtr StarlingBackend::endCoalescing() {
  std::vector<c10::intrusive_ptr<StarlingWork>> parts;
  {
    const std::lock_guard lock(coalesced_mutex_);
    if (!coalesced_) throw Error(ErrorCode::kConfig, "endCoalescing without startCoalescing");
    parts.swap(*coalesced_);
    coalesced_.reset();
  }
  Tensors outputs;
  for (const auto& part : parts) {
    for (at::Tensor& tensor : part->result()) outputs.push_back(std::move(tensor));
  }
  const WorkDescription description{
      .rank = rank_, .type = c10d::OpType::COALESCED, .title = "starling:coalesced", .sequence = sequence_};
  auto whole = c10::make_intrusive<StarlingWork>(description, std::move(outputs), hooks_);
  if (parts.empty()) whole->complete(nullptr);
  const auto state = std::make_shared<Coalesced>(parts.size());
  for (const auto& part : parts) {
    part->getFuture()->addCallback([state, whole](c10::ivalue::Future& future) {
      std::exception_ptr error;
      {
        const std::lock_guard lock(state->mutex);
        if (future.hasError() && !state->error) state->error = future.exception_ptr();
        if (--state->left > 0) return;
        error = state->error;
      }
      whole->complete(error);
    });
  }
  return whole;
}

// NOLINTNEXTLINE(google-runtime-int): c10d's type
at::Tensor StarlingBackend::allocateTensor(long size, at::TensorOptions options) {
  if (!options.device().is_cpu()) {
    throw Error(ErrorCode::kConfig,
                fmt::format("allocateTensor: a tensor on {}, and the backend starling communicates "
                            "CPU tensors; NCCL is the backend for CUDA",
                            options.device().str()));
  }
  if (size < 0) throw Error(ErrorCode::kConfig, fmt::format("allocateTensor: {} elements", size));
  const size_t bytes = std::max<size_t>(1, static_cast<size_t>(size) * options.dtype().itemsize());
  const auto owner = group();
  const std::shared_ptr<Window> window = window_of(*owner, bytes);
  return at::from_blob(
      window->region(owner->local_rank()), {size}, [window](void*) {}, at::dtype(options.dtype()));
}

}  // namespace starling
