#include "starling/parallel/zero/parameter_unit.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/c10d/data_type.h"
#include "starling/parallel/replica/flat_replica.h"

namespace starling {
namespace {

// RecordFunction::inputs() checks a flag that libtorch sets in debug builds only. Its header has the check
// without NDEBUG, which Starling does not define. So this function reads the arguments themselves: an
// explicit instantiation may name a private member.
template <auto kMember>
struct Reveal {
  friend c10::ArrayRef<const c10::IValue> arguments_of(const at::RecordFunction& operation) {
    return operation.*kMember;
  }
};
c10::ArrayRef<const c10::IValue> arguments_of(const at::RecordFunction& operation);
template struct Reveal<&at::RecordFunction::inputs_>;

}  // namespace

// What the storage of a unit's whole parameters owns. It leads from a tensor to its unit.
struct ParameterUnit::Memory {
  ParameterUnit* unit;
  c10::DataPtr bytes;
};

// The units that one operation uses.
struct GatherOnUse::InUse final : at::ObserverContext {
  std::vector<ParameterUnit*> units;
};

GatherOnUse::GatherOnUse(size_t kept)
    : kept_(kept),
      callback_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&begins, &ends).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {
}

GatherOnUse::~GatherOnUse() {
  at::removeCallback(callback_);
}

std::unique_ptr<at::ObserverContext> GatherOnUse::begins(const at::RecordFunction& operation) {
  std::unique_ptr<InUse> in_use;
  const auto visit = [&](const at::Tensor& tensor) {
    ParameterUnit* unit = ParameterUnit::unit_of(tensor);
    if (unit == nullptr) return;
    if (in_use == nullptr) in_use = std::make_unique<InUse>();
    ++unit->pins_;
    in_use->units.push_back(unit);
  };
  for (const c10::IValue& input : arguments_of(operation)) {
    if (input.isTensor()) visit(input.toTensor());
    if (!input.isList()) continue;
    for (const c10::IValue& item : input.toListRef())
      if (item.isTensor()) visit(item.toTensor());
  }
  if (in_use != nullptr) {
    for (ParameterUnit* unit : in_use->units) unit->environment_.gatherer.use(*unit);
  }
  return in_use;
}

void GatherOnUse::ends(const at::RecordFunction& /*operation*/, at::ObserverContext* in_use) {
  if (in_use == nullptr) return;
  for (ParameterUnit* unit : static_cast<InUse*>(in_use)->units) --unit->pins_;
}

// An error of a collective may not leave a callback. The unit then holds zeros, and rethrow() reports it.
void GatherOnUse::use(ParameterUnit& unit) {
  if (!unit.gathered_ && !holds_) shrink(kept_);
  try {
    unit.gather();
  } catch (...) {
    if (!fault_) fault_ = std::current_exception();
  }
  const auto found = std::find(whole_.begin(), whole_.end(), &unit);
  if (found != whole_.end()) whole_.splice(whole_.begin(), whole_, found);
}

void GatherOnUse::shrink(size_t kept) {
  std::vector<ParameterUnit*> unused;
  for (ParameterUnit* unit : whole_)
    if (unit->pins_ == 0) unused.push_back(unit);
  for (size_t i = kept; i < unused.size(); ++i) unused[i]->release();
}

void GatherOnUse::hold(bool hold) {
  holds_ = hold;
  if (!hold) shrink(0);
}

void GatherOnUse::note(size_t unit) {
  order_ = (order_ * 1000003 + unit + 1) % (uint64_t{1} << 52);
}

void GatherOnUse::require_same_order(Group& group) {
  double order[2] = {static_cast<double>(order_), -static_cast<double>(order_)};
  order_ = 0;
  if (group.size() > 1) all_reduce(group, order, 2, DataType::kFp64, ReduceOp::kMax);
  if (order[0] == -order[1]) return;
  throw ConfigError("train.shard",
                    "the ranks have not used the same parameters in the same order, and --shard parameters "
                    "gathers them at each use: make the same operations on every rank, or use --shard "
                    "gradients");
}

void GatherOnUse::rethrow() {
  if (fault_) std::rethrow_exception(std::exchange(fault_, nullptr));
}

std::vector<std::vector<size_t>> plan_units(const Replica& replica, size_t bytes) {
  std::vector<std::vector<size_t>> units;
  size_t held = 0;
  at::ScalarType type = at::kFloat;
  for (size_t i = 0; i < replica.parameters.size(); ++i) {
    const at::Tensor& p = replica.parameters[i].tensor;
    if (units.empty() || held >= bytes || p.scalar_type() != type) {
      units.emplace_back();
      held = 0;
      type = p.scalar_type();
    }
    units.back().push_back(i);
    held += p.nbytes();
  }
  return units;
}

ParameterUnit::ParameterUnit(std::vector<size_t> parameters, Replica& replica, at::ScalarType master,
                             const UnitEnvironment& environment)
    : parameters_(std::move(parameters)), environment_(environment) {
  const at::NoGradGuard no_grad;
  std::vector<size_t> sizes;
  for (const size_t i : parameters_) sizes.push_back(replica.parameters[i].tensor.numel());
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  layout_ = make_flat_layout(sizes, order, std::accumulate(sizes.begin(), sizes.end(), size_t{1}));
  const int64_t ranks = environment.group.size(), align = kFlatAlign;
  share_ = (static_cast<int64_t>(layout_.total) + ranks * align - 1) / (ranks * align) * align;
  begin_ = share_ * environment.group.rank();

  const at::ScalarType type = replica.parameters[parameters_.front()].tensor.scalar_type();
  whole_ = at::zeros({share_ * ranks}, type);
  c10::StorageImpl* storage = whole_.storage().unsafeGetStorageImpl();
  own_memory(storage->set_data_ptr(c10::DataPtr(nullptr, at::kCPU)));
  environment_.gatherer.whole_.push_front(this);
  environment_.account.whole_bytes += whole_.nbytes();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& p = replica.parameters[parameters_[i]].tensor;
    likes_.push_back(at::empty_strided(p.sizes(), p.strides(), at::TensorOptions(type).device(at::kMeta)));
    const at::Tensor place = view(whole_, i);
    place.copy_(p);
    p.set_data(place);
  }
  own_ = whole_.narrow(0, begin_, share_).clone();
  master_ = type == master ? own_ : own_.to(master);
  std::vector<NamedTensor> updated;
  for (const size_t i : parameters_) updated.push_back(replica.parameters[i]);
  range_ = OwnedRange(updated, layout_, master_, begin_);
  release();
}

// Without its unit the storage owns plain memory, or none.
ParameterUnit::~ParameterUnit() {
  if (broken_) drop();
  environment_.gatherer.whole_.remove(this);
  c10::StorageImpl* storage = whole_.storage().unsafeGetStorageImpl();
  auto* memory = static_cast<Memory*>(storage->_mutable_data_ptr_no_checks().get_context());
  c10::DataPtr bytes = std::move(memory->bytes);  // the storage deletes `memory` before it has new bytes
  storage->set_data_ptr_noswap(std::move(bytes));
}

ParameterUnit* ParameterUnit::unit_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const c10::DataPtr& data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.get_deleter() == &free_memory ? static_cast<Memory*>(data.get_context())->unit : nullptr;
}

void ParameterUnit::free_memory(void* memory) {
  delete static_cast<Memory*>(memory);
}

// Makes the storage of the whole parameters own `bytes`, by a Memory.
void ParameterUnit::own_memory(c10::DataPtr bytes) {
  void* data = bytes.get();
  const c10::Device device = bytes.device();
  auto* memory = new Memory{this, std::move(bytes)};
  whole_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      c10::DataPtr(data, memory, &free_memory, device));
}

// Gives the storage of the whole parameters, and so all tensors on it, memory of this size. Without memory
// libtorch throws the message for an access.
void ParameterUnit::hold(size_t bytes) {
  own_memory(c10::GetCPUAllocator()->allocate(bytes));
  c10::StorageImpl* storage = whole_.storage().unsafeGetStorageImpl();
  storage->set_nbytes(bytes);
  if (bytes > 0) return storage->clear_data_ptr_access_error_msg_();
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "A parameter that --shard parameters divides among the ranks is read, but it has no memory now: read "
      "it through an operation, or within DistributedOptimizer::consensus()");
}

at::Tensor ParameterUnit::view(const at::Tensor& flat, size_t position) const {
  return on_memory_of(flat, static_cast<int64_t>(layout_.offset[position]), likes_[position]);
}

void ParameterUnit::gather() {
  if (gathered_) return;
  const size_t bytes = static_cast<size_t>(whole_.numel()) * whole_.element_size();
  hold(bytes);
  gathered_ = broken_ = true;
  environment_.gatherer.whole_.push_front(this);
  environment_.gatherer.note(parameters_.front());
  ParameterAccount& account = environment_.account;
  account.whole_bytes += bytes;
  account.peak_whole_bytes = std::max(account.peak_whole_bytes, account.whole_bytes);
  ++account.gathers;
  void* to = whole_.storage().mutable_data();
  std::memset(to, 0, bytes);
  const Group& group = environment_.group;
  const uint64_t before = group.traffic().received();
  const Nanoseconds start = environment_.clock.now();
  all_gather(environment_.group, own_.data_ptr(), to, static_cast<size_t>(share_),
             data_type_of(whole_.scalar_type()));
  broken_ = false;
  account.gather_s += to_seconds(environment_.clock.now() - start);
  account.received_elements +=
      static_cast<double>(group.traffic().received() - before) / static_cast<double>(whole_.element_size());
}

// The program may have changed the parameters, as a limit on the weights does. All ranks then have the same
// values. No operation of libtorch may copy them, because its arguments would be visited.
void ParameterUnit::keep_changes() {
  if (!gathered_ || broken_ || !own_.is_same(master_)) return;
  const auto* whole = static_cast<const std::byte*>(whole_.storage().data());
  std::memcpy(own_.mutable_data_ptr(), whole + static_cast<size_t>(begin_) * whole_.element_size(),
              own_.nbytes());
}

void ParameterUnit::release() {
  keep_changes();
  drop();
}

void ParameterUnit::drop() {
  if (!gathered_) return;
  environment_.account.whole_bytes -= whole_.nbytes();
  environment_.gatherer.whole_.remove(this);
  hold(0);
  gathered_ = broken_ = false;
}

void ParameterUnit::updated() {
  const at::NoGradGuard no_grad;
  if (!own_.is_same(master_)) own_.copy_(master_);
  drop();
}

void ParameterUnit::take_gradients(Replica& replica, double weight, std::vector<double>& used) {
  const at::NoGradGuard no_grad;
  own_gradient_.reset();
  if (!gradient_.defined()) gradient_ = at::zeros({whole_.numel()}, whole_.options());
  for (size_t i = 0; i < parameters_.size(); ++i)
    used[parameters_[i]] = take_gradient(replica.parameters[parameters_[i]], view(gradient_, i)) ? 1 : 0;
  if (weight != 1) gradient_.mul_(weight);
}

void ParameterUnit::reduce(bool whole) {
  const at::NoGradGuard no_grad;
  STARLING_CHECK(gradient_.defined(), "the unit has no gradients to reduce");
  Group& group = environment_.group;
  const DataType type = data_type_of(gradient_.scalar_type());
  if (group.size() == 1) return;
  if (whole)
    return all_reduce(group, gradient_.data_ptr(), static_cast<size_t>(gradient_.numel()), type,
                      ReduceOp::kAvg);
  own_gradient_ = at::empty({share_}, gradient_.options());
  reduce_scatter(group, gradient_.data_ptr(), own_gradient_.data_ptr(), static_cast<size_t>(share_), type,
                 ReduceOp::kAvg);
}

at::Tensor ParameterUnit::own_gradient() {
  if (!own_gradient_.defined()) own_gradient_ = gradient_.narrow(0, begin_, share_).clone();
  if (own_gradient_.scalar_type() != master_.scalar_type())
    own_gradient_ = own_gradient_.to(master_.scalar_type());
  return own_gradient_;
}

GradientShare ParameterUnit::gradient_share(const Replica& replica) {
  return {own_gradient(), begin_, replica, parameters_, layout_};
}

void ParameterUnit::release_gradients(Replica& replica) {
  for (const size_t i : parameters_) {
    at::Tensor& gradient = replica.parameters[i].tensor.mutable_grad();
    if (gradient.defined() && gradient_.defined() && gradient.storage().is_alias_of(gradient_.storage()))
      gradient.reset();
  }
  gradient_.reset();
}

int64_t ParameterUnit::gradient_elements() const {
  return gradient_.defined() ? gradient_.numel() : own_gradient_.defined() ? own_gradient_.numel() : 0;
}

void ParameterUnit::forget_gradients() {
  own_gradient_.reset();
}

void ParameterUnit::collect(const Replica& replica, std::map<std::string, at::Tensor>& out) {
  keep_changes();
  const std::vector<at::Tensor> shares = gather_flat(environment_.group, master_);
  if (shares.empty()) return;
  const at::Tensor flat = at::cat(shares);
  for (size_t i = 0; i < parameters_.size(); ++i)
    out[replica.parameters[parameters_[i]].name] = view(flat, i).clone(at::MemoryFormat::Contiguous);
}

void ParameterUnit::load(const Replica& replica, const std::map<std::string, at::Tensor>& in) {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = at::zeros({whole_.numel()}, master_.options());
  for (size_t i = 0; i < parameters_.size(); ++i)
    view(flat, i).copy_(fitting(in, replica.parameters[parameters_[i]].name, likes_[i]));
  master_.copy_(flat.narrow(0, begin_, share_));
  updated();
}

size_t ParameterUnit::own_bytes() const {
  return own_.nbytes() + (own_.is_same(master_) ? 0 : master_.nbytes());
}

}  // namespace starling
