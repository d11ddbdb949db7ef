// CPU, memory, network and limits: the parts of doctor that query the system.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <tuple>

#include "starling/base/physical_memory.h"
#include "starling/base/unique_fd.h"
#include "starling/commands/cpu_topology.h"
#include "starling/commands/doctor_parts.h"
#include "starling/telemetry/text_style.h"

namespace starling::doctor {
namespace {

std::string cache_text(const CpuTopology& topology) {
  std::string text;
  for (const auto& [level, cache] : topology.caches)
    text +=
        fmt::format("{}L{} {} x {} KiB", text.empty() ? "" : ", ", level, cache.count, cache.bytes / 1024);
  return text;
}

// Returns the "flags" of /proc/cpuinfo that matter to training.
std::string instruction_sets(bool& has_avx2) {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; flags.empty() && std::getline(file, line);) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) flags.insert(word);
  }
  has_avx2 = flags.contains("avx2");
  std::string text;
  for (const char* flag :
       {"sse4_2", "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16",
        "amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "bf16"}) {
    if (flags.contains(flag)) text += (text.empty() ? "" : " ") + std::string(flag);
  }
  return text;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.find(':') + 2, line.size()));
  }
  return {};
}

// Returns the cores that a container may use by its quota; 0 if there is no quota.
double cpu_quota() {
  std::istringstream words(first_line("/sys/fs/cgroup/cpu.max"));
  double quota = 0, period = 0;
  return words >> quota >> period && period > 0 ? quota / period : 0;
}

std::string limit_text(rlim_t value, bool bytes) {
  if (value == RLIM_INFINITY) return "unlimited";
  return bytes ? bytes_text(value) : with_thousands(static_cast<int64_t>(value));
}

std::string address_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);
  }
  return text;
}

int entries_of(const char* folder) {
  std::error_code error;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) count += !entry.path().empty();
  return count;
}

void check_shared_memory(Findings& out) {
  const UniqueFd fd(::memfd_create("starling-doctor", MFD_CLOEXEC));
  const bool works = fd.valid() && ::ftruncate(fd.get(), 1 << 20) == 0;
  out.text("memfd", "memfd", works ? "works" : std::string("fails: ") + std::strerror(errno));
  if (!works) {
    out.problems.push_back({"memfd_create fails, so ranks of this host cannot share memory",
                            "allow it in the container's seccomp profile, or set comm.shared_memory = false",
                            true});
  }
  struct statvfs shm{};
  if (::statvfs("/dev/shm", &shm) == 0) {
    const double size = static_cast<double>(shm.f_blocks) * static_cast<double>(shm.f_frsize);
    const uint64_t left = uint64_t{shm.f_bavail} * shm.f_frsize;
    out.number("dev_shm_bytes", "/dev/shm", size,
               fmt::format("{}, {} free (not used by Starling)", bytes_text(static_cast<uint64_t>(size)),
                           bytes_text(left)));
  }
}

// The measurements are in docs/benchmarks.md, "Codecs on a slow network".
void check_congestion_control(Findings& out) {
  const std::string name = first_line("/proc/sys/net/ipv4/tcp_congestion_control");
  if (name.empty()) return;
  out.text("congestion_control", "congestion control", name);
  if (!name.starts_with("bbr")) return;
  out.problems.push_back(
      {"TCP uses the congestion control bbr; long messages among several hosts may take less time with cubic",
       "on every host of a local network: sysctl -w net.ipv4.tcp_congestion_control=cubic", false});
}

}  // namespace

Findings examine_cpu() {
  Findings out;
  out.section.title = "cpu";
  out.text("model", "model", cpu_model());
  bool avx2 = false;
  const std::string sets = instruction_sets(avx2);
  const CpuTopology topology = read_cpu_topology("/sys/devices/system");
  const int units = topology.units;
  if (units > 0) {
    out.number("packages", "sockets", topology.packages, fmt::format("{}", topology.packages));
    out.number("cores", "cores", topology.cores,
               fmt::format("{} ({} hardware threads)", topology.cores, units));
    out.number("hardware_threads", "", units, "");
    out.text("caches", "caches", cache_text(topology));
    out.number("numa_nodes", "NUMA nodes", topology.numa_nodes, fmt::format("{}", topology.numa_nodes));
  }
  out.text("instruction_sets", "instruction sets", sets);
#ifdef __x86_64__
  if (!avx2) {
    out.problems.push_back({"the CPU shows no AVX2: libtorch runs its slowest kernels",
                            "in a virtual machine, pass the host's CPU through (QEMU: -cpu host)", true});
  }
#endif
  if (const double quota = cpu_quota(); quota > 0) {
    out.number("cpu_quota", "CPU quota", quota, fmt::format("{:.2f} cores", quota));
    if (quota + 0.01 < units) {
      out.problems.push_back(
          {fmt::format("the container may use {:.2f} of {} hardware threads", quota, units),
           fmt::format("keep ranks x threads at {} or less, or raise the quota",
                       std::max(1, static_cast<int>(quota))),
           false});
    }
  }
  double load = 0;
  if (::getloadavg(&load, 1) == 1 && units > 0) {
    out.number("load", "load", load, fmt::format("{:.1f} processes want to run", load));
    if (load > 0.5 * units) {
      out.problems.push_back(
          {fmt::format("other programs keep the cores busy (load {:.1f}): the measured rates are too low",
                       load),
           "end them and run doctor again; training with them shares the cores", false});
    }
  }
  const std::string governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (governor == "powersave" &&
      first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver") != "intel_pstate") {
    out.problems.push_back(
        {"the CPU's frequency governor is powersave", "cpupower frequency-set -g performance", false});
  }
  return out;
}

Findings examine_memory() {
  Findings out;
  out.section.title = "memory";
  const uint64_t total = meminfo("MemTotal"), available = meminfo("MemAvailable");
  out.number("total_bytes", "memory", static_cast<double>(total),
             fmt::format("{}, {} available", bytes_text(total), bytes_text(available)));
  out.number("available_bytes", "", static_cast<double>(available), "");
  if (available < (uint64_t{1} << 30)) {
    out.problems.push_back({fmt::format("only {} of memory are available", bytes_text(available)),
                            "end other programs, or train with fewer ranks and a smaller --global-batch",
                            true});
  }
  for (const auto& [key, name, file] :
       {std::tuple("huge_pages", "huge pages", "enabled"),
        std::tuple("huge_pages_shared", "huge pages, shared", "shmem_enabled")}) {
    const std::string modes = first_line(std::string("/sys/kernel/mm/transparent_hugepage/") + file);
    const size_t open = modes.find('['), close = modes.find(']');
    if (open != std::string::npos && close != std::string::npos)
      out.text(key, name, modes.substr(open + 1, close - open - 1));
  }
  const uint64_t reserved = meminfo("HugePages_Total");
  out.number("huge_pages_reserved", "huge pages reserved", static_cast<double>(reserved),
             with_thousands(static_cast<int64_t>(reserved)));
  check_shared_memory(out);
  return out;
}

Findings examine_network() {
  Findings out;
  out.section.title = "network";
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return out;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::map<std::string, std::string> found;
  bool reachable = false;
  for (const ifaddrs* i = list; i; i = i->ifa_next) {
    const bool up = (i->ifa_flags & IFF_UP) != 0;
    std::string& text = found.try_emplace(i->ifa_name, up ? "" : "down").first->second;
    const std::string address = i->ifa_addr ? address_text(i->ifa_addr) : "";
    if (address.empty()) continue;
    text += (text.empty() ? "" : ", ") + address;
    reachable |= up && (i->ifa_flags & IFF_LOOPBACK) == 0 && !address.starts_with("fe80");
  }
  for (auto& [name, text] : found) {
    const std::string speed = first_line("/sys/class/net/" + name + "/speed");
    if (!speed.empty() && speed[0] != '-')
      text += fmt::format("{}{} Mbit/s", text.empty() ? "" : ", ", speed);
    out.text("interface_" + name, name, text.empty() ? "no address" : text);
  }
  check_congestion_control(out);
  const int rdma = entries_of("/sys/class/infiniband");
  out.number("rdma_devices", "RDMA devices", rdma, fmt::format("{}", rdma));
  if (!reachable) {
    out.problems.push_back(
        {"no network interface but the loopback has an address: this host trains alone",
         "bring an interface up (ip link set NAME up; ip address add …) to train on several hosts", false});
  }
  return out;
}

Findings examine_limits() {
  Findings out;
  out.section.title = "limits";
  utsname name{};
  if (::uname(&name) == 0) out.text("kernel", "kernel", fmt::format("{} {}", name.sysname, name.release));
  rlimit files{}, locked{}, processes{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  ::getrlimit(RLIMIT_MEMLOCK, &locked);
  ::getrlimit(RLIMIT_NPROC, &processes);
  out.text("open_files", "open files", limit_text(files.rlim_cur, false));
  out.text("locked_memory", "locked memory", limit_text(locked.rlim_cur, true));
  out.text("processes", "processes", limit_text(processes.rlim_cur, false));
  if (files.rlim_cur < 1024) {
    out.problems.push_back(
        {fmt::format("only {} files may be open", files.rlim_cur), "ulimit -n 65536", true});
  }
  if (entries_of("/sys/class/infiniband") > 0 && locked.rlim_cur != RLIM_INFINITY) {
    out.problems.push_back(
        {fmt::format("only {} of memory may be locked, too little for RDMA", bytes_text(locked.rlim_cur)),
         "ulimit -l unlimited (in /etc/security/limits.conf: * - memlock unlimited)", false});
  }
  const std::string scope = first_line("/proc/sys/kernel/yama/ptrace_scope");
  out.text("ptrace", "ptrace",
           scope.empty() || scope == "0" ? "own processes"
                                         : "restricted (yama " + scope + "): only for debuggers");
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  out.text("pidfd", "pidfd", pidfd.valid() ? "works" : std::string("fails: ") + std::strerror(errno));
  if (!pidfd.valid()) {
    out.problems.push_back({"pidfd_open fails: the launcher cannot watch its ranks",
                            "use Linux 5.3 or newer and allow pidfd_open in the container's seccomp profile; "
                            "or start the ranks with torchrun or srun",
                            true});
  }
  return out;
}

}  // namespace starling::doctor
