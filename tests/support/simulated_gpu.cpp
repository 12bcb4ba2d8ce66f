// What torch's C++ code asks of a build with CUDA, for a build without it: a device guard, and the hooks by which autograd finds
// the accelerator. Compiled by `simulated_gpu.py`.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

using c10::Device, c10::DeviceIndex, c10::DeviceType, c10::Stream;

struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  static thread_local DeviceIndex current;
  Device getDevice() const override { return Device(DeviceType::CUDA, current); }
  void uncheckedSetDevice(Device device) const noexcept override { if (device.has_index()) current = device.index(); }
  void setDevice(Device device) const override { uncheckedSetDevice(device); }
  Device exchangeDevice(Device device) const override { Device old = getDevice(); setDevice(device); return old; }
  Stream getStream(Device device) const noexcept override {
    return Stream(Stream::DEFAULT, device.has_index() ? device : Device(DeviceType::CUDA, current));
  }
  Stream exchangeStream(Stream stream) const noexcept override { return stream; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  DeviceIndex deviceCount() const noexcept override { return 8; }
};
thread_local DeviceIndex Guard::current = 0;
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct CUDAHooks : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 8; }
};
using at::CUDAHooksRegistry, at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks)  // torch looks for this name
