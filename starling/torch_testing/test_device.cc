#include "starling/torch_testing/test_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>

#include "starling/base/check.h"
#include "starling/torch_testing/test_memory.h"
#include "starling/torch_testing/test_streams.h"

namespace starling {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
constexpr int kPoison = 0xFF;  // floating-point numbers of these bytes are NaN

thread_local c10::DeviceIndex current_device = 0;

// The state of the device. libtorch refers to it until the process ends, so it is never destroyed.
struct State {
  TestMemory memory;
  TestStreams streams;
};

State& state() {
  static State& state = *new State;
  return state;
}

c10::Stream current_stream() {
  return TestStreams::current({kType, current_device});
}

void poison(void* begin, size_t bytes) {
  std::memset(begin, kPoison, bytes);
}

// Memory is poisoned in the order of the stream: work of this stream may still use the block's former
// content.
class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kType, current_device);
    if (bytes == 0) return {nullptr, nullptr, &release, device};
    void* block = state().memory.allocate(bytes);
    state().streams.put(current_stream(),
                        [kernel = state().memory.kernel_address(block), bytes] { poison(kernel, bytes); });
    return {block, block, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    state().streams.put(current_stream(),
                        [to = state().memory.kernel_address(to), from = state().memory.kernel_address(from),
                         bytes] { std::memcpy(to, from, bytes); });
  }

 private:
  static void release(void* block) {
    if (block != nullptr) state().memory.free(block);
  }
};

DeviceAllocator& device_allocator() {
  static DeviceAllocator& allocator = *new DeviceAllocator;
  return allocator;
}

// Host memory for asynchronous copies. A gradient that was read before its copy is done is NaN.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = c10::GetCPUAllocator()->allocate(bytes);
    if (bytes > 0) poison(data.get(), bytes);
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetCPUAllocator()->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool(hasPrimaryContext)(c10::DeviceIndex /*device*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kTestDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  // torch::manual_seed() seeds it. Kernels draw from the generator of the CPU.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    static std::array<at::Generator, kTestDevices> generators = {at::detail::createCPUGenerator(),
                                                                 at::detail::createCPUGenerator()};
    return generators.at(device < 0 ? 0 : static_cast<size_t>(device));
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedAllocator& allocator = *new PinnedAllocator;
    return &allocator;
  }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override {
    STARLING_CHECK(device.index() >= 0 && device.index() < kTestDevices, "there is no test device {}",
                   int{device.index()});
    current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kTestDevices; }

  c10::Stream getStream(c10::Device device) const override { return TestStreams::current(device); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high*/) const override {
    return state().streams.from_pool(device);
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return state().streams.from_pool(device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return TestStreams::exchange(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    return state().streams.finished(state().streams.end(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    state().streams.finish(state().streams.end(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    state().streams.finish_device(device);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    destroyEvent(*event, 0);
    *event = new TestStreams::Place(state().streams.end(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) state().streams.order(stream, *static_cast<TestStreams::Place*>(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || state().streams.finished(*static_cast<TestStreams::Place*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) state().streams.finish(*static_cast<TestStreams::Place*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<TestStreams::Place*>(event);
  }
};

// Returns the bytes of a tensor on the device as a tensor of the CPU. Only work of a stream may use it.
at::Tensor in_kernel(const at::Tensor& tensor) {
  const at::TensorOptions options(tensor.scalar_type());
  if (tensor.numel() == 0) return at::empty(tensor.sizes(), options);
  void* data = state().memory.kernel_address(tensor.const_data_ptr());
  return at::from_blob(data, tensor.sizes(), tensor.strides(), options);
}

// Appends a copy to the stream of the device. What is kept lives until then.
void put_copy(c10::Stream stream, const at::Tensor& from, const at::Tensor& to) {
  state().streams.put(stream, [from, to] {
    const at::NoGradGuard no_grad;
    at::Tensor(to).copy_(from);
  });
}

// Copies between the host and the device, or on the device. A blocking copy from the host takes a snapshot.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool to_device = to.device().type() == kType;
  const c10::Stream stream = TestStreams::current(to_device ? to.device() : from.device());
  if (to_device) {
    if (from.device().type() == kType) {
      const c10::Stream source = TestStreams::current(from.device());
      if (source.device() != stream.device()) state().streams.order(stream, state().streams.end(source));
      put_copy(stream, in_kernel(from), in_kernel(to));
    } else {
      put_copy(stream, non_blocking ? from : from.clone(), in_kernel(to));
    }
    return to;
  }
  put_copy(stream, in_kernel(from), to);
  if (!non_blocking) state().streams.finish(state().streams.end(stream));
  return to;
}

at::Tensor new_tensor(at::IntArrayRef size, std::optional<at::ScalarType> type,
                      std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                      std::optional<bool> /*pinned*/, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &device_allocator(), kKeys, c10::dtype_or_default(type), format);
}

at::Tensor new_strided_tensor(at::IntArrayRef size, at::IntArrayRef stride,
                              std::optional<at::ScalarType> type, std::optional<at::Layout> /*layout*/,
                              std::optional<at::Device> device, std::optional<bool> /*pinned*/) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &device_allocator(), kKeys,
                                           c10::dtype_or_default(type));
}

// Gives the tensor's storage at least `bytes` bytes. Keeps the content.
void grow(const at::Tensor& tensor, size_t bytes) {
  const c10::Storage& storage = tensor.storage();
  if (storage.nbytes() >= bytes) return;
  const c10::DeviceGuard guard(tensor.device());
  c10::DataPtr data = device_allocator().allocate(bytes);
  if (storage.nbytes() > 0) device_allocator().copy_data(data.get(), storage.data(), storage.nbytes());
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
}

// NOLINTBEGIN(bugprone-return-const-ref-from-parameter): the type of aten::resize_
const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<at::MemoryFormat> format) {
  if (self.sizes() == size) return self;
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (format) impl->empty_tensor_restride(*format);
  grow(self, static_cast<size_t>(self.storage_offset() + self.numel()) * self.itemsize());
  return self;
}
// NOLINTEND(bugprone-return-const-ref-from-parameter)

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, /*non_blocking=*/false);
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.cpu() : tensor;
}

OptionalTensor on_cpu(const OptionalTensor& tensor) {
  return tensor && tensor->defined() ? OptionalTensor(tensor->cpu()) : std::nullopt;
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& w, const OptionalTensor& b,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                       bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  return at::convolution(on_cpu(x), on_cpu(w), on_cpu(b), stride, padding, dilation, transposed,
                         output_padding, groups)
      .to(x.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> mask) {
  const std::array<int64_t, 1> bias = {dy.size(1)};
  const auto [dx, dw, db] = at::convolution_backward(
      on_cpu(dy), on_cpu(x), on_cpu(w), at::OptionalIntArrayRef(at::IntArrayRef(bias)), stride, padding,
      dilation, transposed, output_padding, groups, mask);
  const auto back = [&x](const at::Tensor& t) { return t.defined() ? t.to(x.device()) : t; };
  return {back(dx), back(dw), back(db)};
}

// The schema does not say that the running statistics change, so the fallback would not copy them back.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(const at::Tensor& x, const OptionalTensor& w,
                                                          const OptionalTensor& b, const OptionalTensor& mean,
                                                          const OptionalTensor& var, bool training,
                                                          double momentum, double eps) {
  const OptionalTensor cpu_mean = on_cpu(mean), cpu_var = on_cpu(var);
  const auto [y, saved_mean, saved_scale] =
      at::native_batch_norm(on_cpu(x), on_cpu(w), on_cpu(b), cpu_mean, cpu_var, training, momentum, eps);
  if (training && cpu_mean) at::Tensor(*mean).copy_(*cpu_mean);
  if (training && cpu_var) at::Tensor(*var).copy_(*cpu_var);
  return {y.to(x.device()), saved_mean.to(x.device()), saved_scale.to(x.device())};
}

void on_copies(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

// What libtorch keeps of the device.
struct Registration {
  Registration() {
    c10::register_privateuse1_backend("starling_test");
    at::RegisterPrivateUse1HooksInterface(&hooks);
    c10::SetAllocator(kType, &device_allocator());
    kernels.impl("empty.memory_format", &new_tensor);
    kernels.impl("empty_strided", &new_strided_tensor);
    kernels.impl("_copy_from", &copy_from);
    kernels.impl("_copy_from_and_resize", &copy_from_and_resize);
    kernels.impl("resize_", &resize_);
    kernels.impl("as_strided", &at::native::as_strided_tensorimpl);
    kernels.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
    kernels.impl("_reshape_alias",
                 static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef, at::IntArrayRef)>(
                     &at::native::_reshape_alias));
    kernels.impl("unfold", &at::native::unfold);
    kernels.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
    kernels.impl("convolution_overrideable", &convolution);
    kernels.impl("convolution_backward_overrideable", &convolution_backward);
    kernels.impl("native_batch_norm", &batch_norm);
    others.fallback(torch::CppFunction::makeFromBoxedFunction<&on_copies>());
  }

  Hooks hooks;
  c10::impl::DeviceGuardImplRegistrar guard{kType, new Guard};
  torch::Library kernels{torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__};
  torch::Library others{torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__};
};

}  // namespace

at::Device test_device(int index) {
  static const Registration& registered = *new Registration;
  static_cast<void>(registered);
  return {kType, static_cast<c10::DeviceIndex>(index)};
}

size_t unfinished_work_of_test_devices() {
  return state().streams.unfinished();
}

}  // namespace starling
