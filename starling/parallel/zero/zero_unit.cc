#include "starling/parallel/zero/zero_unit.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "starling/base/check.h"
#include "starling/c10d/data_type.h"
#include "starling/parallel/replica/codec_shapes.h"
#include "starling/parallel/replica/flat_replica.h"

namespace starling {

void ZeroAccount::take(size_t bytes) {
  temporary_bytes += bytes;
  peak_temporary_bytes = std::max(peak_temporary_bytes, temporary_bytes);
}

std::vector<UnitPlan> plan_buckets(const Replica& replica, size_t bucket_bytes) {
  std::vector<UnitPlan> plans;
  size_t bytes = 0;
  for (size_t i = replica.parameters.size(); i-- > 0;) {
    const at::Tensor& p = replica.parameters[i].tensor;
    const bool same =
        !plans.empty() &&
        replica.parameters[plans.back().parameters.front()].tensor.scalar_type() == p.scalar_type();
    if (!same || bytes >= bucket_bytes) {
      plans.emplace_back();
      bytes = 0;
    }
    plans.back().parameters.push_back(i);
    bytes += p.nbytes();
  }
  return plans;
}

std::vector<UnitPlan> plan_blocks(const Replica& replica, const std::vector<BlockTensors>& blocks) {
  std::map<std::string, std::vector<size_t>> users;
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (const std::string& name : blocks[b].parameters) users[name].push_back(b);
  }
  std::map<std::pair<std::vector<size_t>, at::ScalarType>, UnitPlan> plans;
  for (size_t i = 0; i < replica.parameters.size(); ++i) {
    const NamedTensor& p = replica.parameters[i];
    const std::vector<size_t>& used = users[p.name];
    UnitPlan& plan = plans[{used, p.tensor.scalar_type()}];
    plan.parameters.push_back(i);
    plan.first_block = used.front();
    plan.last_block = used.back();
  }
  std::vector<UnitPlan> result;
  for (auto& item : plans) result.push_back(std::move(item.second));
  return result;
}

namespace {

// Allocates or frees the memory behind a tensor and behind all its views. Sizes and strides do not change.
void resize_memory(const at::Tensor& tensor, size_t bytes) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::GetCPUAllocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

}  // namespace

ZeroUnit::ZeroUnit(UnitPlan plan, Replica& replica, int stage, const UpdateRule& rule, at::ScalarType master,
                   const ZeroEnvironment& environment, const std::function<void()>& on_filled)
    : plan_(std::move(plan)), stage_(stage), rule_(rule), environment_(environment), master_type_(master) {
  at::NoGradGuard no_grad;
  std::vector<size_t> sizes;
  for (const size_t i : plan_.parameters) sizes.push_back(replica.parameters[i].tensor.numel());
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  elements_ = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  layout_ = make_flat_layout(sizes, order, elements_ + 1);
  const int64_t ranks = environment.group.size(), align = kFlatAlign;
  share_ = (static_cast<int64_t>(layout_.total) + ranks * align - 1) / (ranks * align) * align;
  size_ = share_ * ranks;
  begin_ = share_ * environment.group.rank();
  type_ = replica.parameters[plan_.parameters.front()].tensor.scalar_type();

  whole_ = at::zeros({size_}, type_);
  for (size_t i = 0; i < plan_.parameters.size(); ++i) {
    at::Tensor& p = replica.parameters[plan_.parameters[i]].tensor;
    likes_.push_back(at::empty_strided(p.sizes(), p.strides(), at::TensorOptions(type_).device(at::kMeta)));
    const at::Tensor place = view(whole_, p, i);
    place.copy_(p);
    p.set_data(place);
    places_.push_back(place);
    slots_.push_back(GradientSlot::install(p, on_filled));
    if (stage_ >= 2) slots_.back().slot->bind_when_needed([this] { open_gradients(); });
  }
  for (size_t i = 0; i < plan_.parameters.size(); ++i) {
    const auto begin = std::max<int64_t>(static_cast<int64_t>(layout_.offset[i]), begin_);
    const auto end = std::min<int64_t>(static_cast<int64_t>(layout_.offset[i] + sizes[i]), begin_ + share_);
    if (begin < end)
      layer_parts_.push_back({static_cast<size_t>(begin - begin_), static_cast<size_t>(end - begin_),
                              plan_.parameters[i], likes_[i].dim() <= 1});
  }
  own_ = whole_.narrow(0, begin_, share_);
  if (stage_ == 3) own_ = own_.clone();
  master_ = is_mixed() ? own_.to(master_type_) : own_;
  for (int s = 0; s < rule_.state_count(); ++s)
    states_.push_back(at::zeros({share_}, is_mixed() ? master_type_ : type_));
  if (stage_ == 1) {
    open_gradients();
    own_gradient_ = gradient_.narrow(0, begin_, share_);
  } else {
    own_gradient_ = at::zeros({share_}, type_);
  }
  if (stage_ == 3) {
    gathered_ = false;
    resize_memory(whole_, 0);
  }
}

at::Tensor ZeroUnit::view(const at::Tensor& flat, const at::Tensor& like, size_t position) const {
  return flat.as_strided(like.sizes(), like.strides(), static_cast<int64_t>(layout_.offset[position]));
}

void ZeroUnit::open_gradients() {
  gradient_ = at::zeros({size_}, type_);
  if (stage_ >= 2) environment_.account.take(gradient_.nbytes());
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].slot->bind(view(gradient_, likes_[i], i));
}

void ZeroUnit::begin_pass() {
  for (auto& s : slots_) s.slot->begin();
}

size_t ZeroUnit::missing() const {
  return static_cast<size_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const auto& s) { return !s.slot->filled(); }));
}

void ZeroUnit::expect_more(bool more) {
  for (auto& s : slots_) s.slot->expect_more(more);
}

void ZeroUnit::scale_gradients(double factor) {
  const at::NoGradGuard no_grad;
  if (stage_ >= 2) {
    own_gradient_.mul_(factor);
    return;
  }
  for (auto& s : slots_) s.slot->scale(factor);
}

void ZeroUnit::fill_unused() {
  at::NoGradGuard no_grad;
  for (auto& s : slots_) s.slot->fill_unused();
}

template <typename F>
void ZeroUnit::exchange(double& seconds, F collective) {
  const auto received = [&] { return environment_.group.traffic().received(); };
  const uint64_t before = received();
  const Nanoseconds start = environment_.clock.now();
  collective();
  seconds += to_seconds(environment_.clock.now() - start);
  environment_.account.received_elements +=
      static_cast<double>(received() - before) / static_cast<double>(at::elementSize(type_));
}

void ZeroUnit::encode_gradients(const CodecSpec& codec, uint64_t number) {
  STARLING_CHECK(stage_ < 3 && type_ != at::kDouble, "codecs take fp32 gradients of whole tensors");
  coded_ = std::make_unique<CodedReduceScatter>(
      environment_.group, codec, codec_shapes(likes_, layout_.offset, static_cast<size_t>(size_)),
      static_cast<size_t>(size_), number);
}

// Writes this rank's share of the sum of the gradients, or with a codec of their mean, to `share`.
void ZeroUnit::reduce_into(const at::Tensor& share, int64_t step) {
  exchange(environment_.account.gradients_s, [&] {
    if (coded_) return reduce_coded(share, step);
    reduce_scatter(environment_.group, gradient_.data_ptr(), share.data_ptr(), share_, data_type_of(type_),
                   ReduceOp::kSum);
  });
}

// The codec takes fp32, so gradients in bf16 are copied, and the mean is rounded to bf16.
void ZeroUnit::reduce_coded(const at::Tensor& share, int64_t step) {
  const bool copies = type_ != at::kFloat;
  const at::Tensor values = gradient_.to(at::kFloat);
  const at::Tensor mean = copies ? at::empty({share_}, at::kFloat) : share;
  if (copies) environment_.account.take(values.nbytes() + mean.nbytes());
  coded_->apply(static_cast<uint64_t>(step), codec_values(values), codec_values(mean));
  if (!copies) return;
  share.copy_(mean);
  environment_.account.give_back(values.nbytes() + mean.nbytes());
}

void ZeroUnit::reduce(bool add, int64_t step) {
  at::NoGradGuard no_grad;
  STARLING_CHECK(gradient_.defined(), "the unit has no gradients to reduce");
  if (stage_ == 1 || add) {  // own_gradient_ is a part of gradient_, or holds earlier gradients
    environment_.account.take(own_gradient_.nbytes());
    const at::Tensor sum = at::empty({share_}, type_);
    reduce_into(sum, step);
    add ? own_gradient_.add_(sum) : own_gradient_.copy_(sum);
    environment_.account.give_back(sum.nbytes());
  } else {
    reduce_into(own_gradient_, step);
  }
  if (stage_ == 1) return;
  environment_.account.give_back(gradient_.nbytes());
  for (auto& s : slots_) s.slot->unbind();
  gradient_.reset();
}

void ZeroUnit::gather() {
  if (gathered_) return;
  at::NoGradGuard no_grad;
  const size_t bytes = static_cast<size_t>(size_) * at::elementSize(type_);
  resize_memory(whole_, bytes);
  environment_.account.take(bytes);
  gathered_ = true;
  exchange(environment_.account.parameters_s, [&] {
    all_gather(environment_.group, own_.data_ptr(), whole_.data_ptr(), share_, data_type_of(type_));
  });
}

void ZeroUnit::release() {
  if (stage_ < 3 || !gathered_) return;
  environment_.account.give_back(whole_.nbytes());
  resize_memory(whole_, 0);
  gathered_ = false;
}

void ZeroUnit::show_average(Replica& replica) {
  at::NoGradGuard no_grad;
  release();
  const at::Tensor own = states_[static_cast<size_t>(rule_.average_state())].to(type_);
  shown_ = at::empty({size_}, type_);
  all_gather(environment_.group, own.data_ptr(), shown_.data_ptr(), share_, data_type_of(type_));
  for (size_t i = 0; i < likes_.size(); ++i)
    replica.parameters[plan_.parameters[i]].tensor.set_data(view(shown_, likes_[i], i));
}

void ZeroUnit::hide_average(Replica& replica) {
  if (!shown_.defined()) return;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < places_.size(); ++i)
    replica.parameters[plan_.parameters[i]].tensor.set_data(places_[i]);
  shown_.reset();
}

GradientShare ZeroUnit::gradient_share(const Replica& replica) const {
  return {own_gradient_, begin_, replica, plan_.parameters, layout_};
}

// Calls call(args) with the buffers of this rank's share. Returns what it returns.
template <typename F>
auto ZeroUnit::with_update(double scale, const F& call) const {
  const auto typed = [&]<typename T, typename G>(T*, G*) {
    const G* sources[] = {static_cast<const G*>(own_gradient_.data_ptr())};
    std::vector<T*> states;
    for (const at::Tensor& s : states_) states.push_back(s.data_ptr<T>());
    UpdateArgs<T, G> args;
    args.gradients = sources;
    args.gradient_scale = scale;
    args.parameter = args.parameter_out = master_.data_ptr<T>();
    if (is_mixed()) args.bf16_out = static_cast<Bf16*>(own_.data_ptr());
    args.state = states.data();
    args.state_out = states.data();
    args.count = static_cast<size_t>(share_);
    return call(args);
  };
  if (is_mixed()) return typed(static_cast<float*>(nullptr), static_cast<Bf16*>(nullptr));
  if (type_ == at::kDouble) return typed(static_cast<double*>(nullptr), static_cast<double*>(nullptr));
  return typed(static_cast<float*>(nullptr), static_cast<float*>(nullptr));
}

void ZeroUnit::clip_elements(double limit) {
  own_gradient_.clamp_(-limit, limit);
}

bool ZeroUnit::apply(double scale, const Step& step) {
  return with_update(scale, [&](const auto& args) { return rule_.apply(args, step.lr, step.index); });
}

void ZeroUnit::add_squares(const LayerRule& rule, double scale, const Step& step,
                           std::vector<LayerSquares>& squares) const {
  with_update(scale, [&](const auto& args) { rule.add_squares(args, layer_parts_, step.index, squares); });
}

bool ZeroUnit::apply(const LayerRule& rule, const std::vector<LayerSquares>& squares, double scale,
                     const Step& step) {
  return with_update(
      scale, [&](const auto& args) { return rule.apply(args, layer_parts_, step.lr, step.index, squares); });
}

void ZeroUnit::publish() {
  if (stage_ == 3) return;
  exchange(environment_.account.parameters_s, [&] {
    all_gather(environment_.group, own_.data_ptr(), whole_.data_ptr(), share_, data_type_of(type_));
  });
}

void ZeroUnit::unflatten(const Replica& replica, const at::Tensor& share, const std::string& prefix,
                         std::map<std::string, at::Tensor>& out) {
  const std::vector<at::Tensor> shares = gather_flat(environment_.group, share);
  if (shares.empty()) return;
  const at::Tensor flat = at::cat(shares);
  for (size_t i = 0; i < likes_.size(); ++i) {
    out[prefix + replica.parameters[plan_.parameters[i]].name] =
        view(flat, likes_[i], i).clone(at::MemoryFormat::Contiguous);
  }
}

void ZeroUnit::collect(const Replica& replica, StrategyState& state) {
  unflatten(replica, master_, "", state.parameters);
  for (size_t s = 0; s < states_.size(); ++s)
    unflatten(replica, states_[s], rule_.state_names()[s] + "/", state.optimizer);
}

at::Tensor ZeroUnit::flatten(const Replica& replica, const std::map<std::string, at::Tensor>& in,
                             const std::string& prefix, at::ScalarType type) const {
  const at::Tensor flat = at::zeros({size_}, type);
  for (size_t i = 0; i < likes_.size(); ++i) {
    const NamedTensor& p = replica.parameters[plan_.parameters[i]];
    view(flat, likes_[i], i).copy_(fitting(in, prefix + p.name, p.tensor));
  }
  return flat;
}

void ZeroUnit::load(const Replica& replica, const StrategyState& state) {
  at::NoGradGuard no_grad;
  const at::Tensor flat = flatten(replica, state.parameters, "", master_.scalar_type());
  if (gathered_) whole_.copy_(flat);
  own_.copy_(flat.narrow(0, begin_, share_));
  master_.copy_(flat.narrow(0, begin_, share_));
  for (size_t s = 0; s < states_.size() && !state.optimizer.empty(); ++s) {
    states_[s].copy_(flatten(replica, state.optimizer, rule_.state_names()[s] + "/", states_[s].scalar_type())
                         .narrow(0, begin_, share_));
  }
}

double ZeroUnit::plain_bytes() const {
  return static_cast<double>((size_ - share_) * static_cast<int64_t>(at::elementSize(type_)));
}

size_t ZeroUnit::parameter_bytes() const {
  return stage_ == 3 ? own_.storage().nbytes() : whole_.storage().nbytes();
}

size_t ZeroUnit::gradient_bytes() const {
  return own_gradient_.storage().nbytes();
}

size_t ZeroUnit::optimizer_bytes() const {
  size_t bytes = is_mixed() ? master_.storage().nbytes() : 0;
  for (const at::Tensor& s : states_) bytes += s.storage().nbytes();
  return bytes;
}

}  // namespace starling
