// A program that trains beside its own work: a simulation with a main loop, threads and its own handling of
// Ctrl-C. One of its threads joins the job and trains. The main loop continues meanwhile.
//
//   embed                                   One rank.
//   starling launch -n 2 embed              Two ranks. torchrun, mpiexec and srun work, too.
//   embed KEY=VALUE …                       Settings of the configuration.
//   embed --faulty-rank R …                 The data of rank R cannot be read after some steps.
//   embed --forever …                       Trains until Ctrl-C.
//   embed --timer …                         The simulation has a timer, whose signals interrupt system calls.
#include <sys/time.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "starling/starling.h"

namespace {

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int /*signal*/) {
  interrupted = 1;
}

volatile std::sig_atomic_t alarms = 0;

void on_alarm(int /*signal*/) {
  alarms = alarms + 1;
}

// Begins an interval timer of 1 ms.
void begin_timer() {
  struct sigaction action{};
  action.sa_handler = on_alarm;
  ::sigaction(SIGALRM, &action, nullptr);
  const itimerval interval{{0, 1000}, {0, 1000}};
  ::setitimer(ITIMER_REAL, &interval, nullptr);
}

// The actions of all signals and the mask of this thread.
struct SignalState {
  std::array<struct sigaction, 32> actions{};
  sigset_t mask{};

  SignalState() {
    for (int signal = 1; signal < 32; ++signal)
      ::sigaction(signal, nullptr, &actions[static_cast<size_t>(signal)]);
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  }
  bool operator==(const SignalState& other) const {
    for (int signal = 1; signal < 32; ++signal) {
      const auto &a = actions[static_cast<size_t>(signal)], &b = other.actions[static_cast<size_t>(signal)];
      if (a.sa_handler != b.sa_handler || a.sa_flags != b.sa_flags) return false;
      if (sigismember(&mask, signal) != sigismember(&other.mask, signal)) return false;
    }
    return true;
  }
};

struct Net : torch::nn::Module {
  torch::nn::Linear line = register_module("line", torch::nn::Linear(2, 2));
  at::Tensor forward(const at::Tensor& x) { return line(x); }
};

// Observations of the simulation. A source of this kind may fail, as every source may.
class Observations final : public starling::Source {
 public:
  explicit Observations(bool faulty) : faulty_(faulty) {
    info_.name = "observations";
    info_.input_shape = {2};
  }
  const starling::SourceInfo& info() const override { return info_; }
  int64_t size() const override { return 256; }
  starling::Batch read(const std::vector<int64_t>& indices, int64_t /*epoch*/) const override {
    if (faulty_ && ++reads_ > 20) throw starling::DataError("observations: the sensor is gone");
    const at::Tensor i = torch::tensor(indices, torch::kFloat);
    const at::Tensor x = torch::stack({(i * 0.37).sin(), (i * 0.11).cos()}, 1);
    return {x, (x.sum(1) > 0).to(torch::kLong)};
  }

 private:
  starling::SourceInfo info_;
  const bool faulty_;
  mutable std::atomic<int> reads_{0};
};

// The training, in a thread of its own.
class Trainer {
 public:
  Trainer(starling::Settings settings, int faulty_rank)
      : thread_([this, settings = std::move(settings), faulty_rank] { train(settings, faulty_rank); }) {}
  ~Trainer() { thread_.join(); }

  bool done() const { return done_; }
  // Any thread may ask the training to stop.
  void stop() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (run_ != nullptr) run_->request_stop();
  }
  // The main loop calls it in every tick. Returns the number of epochs that it has drawn.
  int64_t draw() {
    drawn_ = epochs_.load();
    return drawn_;
  }
  // What happened. Read it when the training is done.
  const std::string& outcome() const { return outcome_; }

 private:
  void train(const starling::Settings& settings, int faulty_rank) {
    const SignalState before;
    try {
      starling::Run run = starling::join(settings);
      const Shown shown(*this, run);
      const auto data = std::make_shared<Observations>(run.rank() == faulty_rank);
      starling::FitOptions options;
      options.on_epoch([this](const starling::EpochState&, const starling::Evaluation&) { show_epoch(); });
      const auto trained = run.fit<Net>([] { return std::make_shared<Net>(); }, starling::cross_entropy, data,
                                        nullptr, options);
      outcome_ = run.is_server() ? "served"
                                 : (trained.result.interrupted ? "interrupted" : "trained") +
                                       std::string(" rank ") + std::to_string(run.rank());
    } catch (const starling::Error& error) {
      outcome_ = std::string("fault: ") + error.what();
    }
    if (!(before == SignalState())) outcome_ += " (the signals of the thread have changed)";
    done_ = true;
  }

  // Lets stop() find the run while it exists.
  struct Shown {
    Trainer& trainer;
    Shown(Trainer& owner, starling::Run& run) : trainer(owner) { set(&run); }
    ~Shown() { set(nullptr); }
    void set(starling::Run* run) {
      const std::lock_guard<std::mutex> lock(trainer.mutex_);
      trainer.run_ = run;
    }
  };

  // Returns when the main loop has drawn the epoch.
  void show_epoch() {
    const int64_t epoch = ++epochs_;
    while (drawn_ < epoch) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  std::atomic<int64_t> epochs_{0}, drawn_{0};
  std::mutex mutex_;
  starling::Run* run_ = nullptr;
  std::atomic<bool> done_{false};
  std::string outcome_;
  std::thread thread_;
};

}  // namespace

int main(int argc, char** argv) {
  starling::Settings settings = {{"train.steps", 200}, {"train.global_batch", 32}};
  int faulty_rank = -1;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    if (word == "--faulty-rank" && i + 1 < argc) faulty_rank = std::stoi(argv[++i]);
    if (word == "--timer") begin_timer();
    if (word == "--forever") settings.set("train.steps", 1000000000);
    if (equals != std::string::npos) settings.set(word.substr(0, equals), word.substr(equals + 1));
  }
  struct sigaction action{};
  action.sa_handler = on_interrupt;
  ::sigaction(SIGINT, &action, nullptr);
  const SignalState before;

  // A wrong setting is an exception like any other, and the program goes on.
  try {
    starling::join({{"optimizer.lr", "fast"}});
  } catch (const starling::ConfigError& error) {
    std::printf("host: refused: %s\n", error.what());
  }

  int64_t epochs = 0;
  std::string outcome;
  {
    Trainer trainer(settings, faulty_rank);
    while (!trainer.done()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // here the simulation computes
      const int64_t before_tick = epochs;
      epochs = trainer.draw();
      if (before_tick == 0 && epochs > 0) {
        std::printf("host: the first epoch is drawn\n");
        std::fflush(stdout);
      }
      if (interrupted != 0) trainer.stop();
    }
    outcome = trainer.outcome();
  }
  const itimerval no_timer{};
  ::setitimer(ITIMER_REAL, &no_timer, nullptr);
  if (alarms > 0) std::printf("host: the timer ticks\n");
  std::printf("host: the main loop has drawn %lld epochs\n", static_cast<long long>(epochs));
  std::printf("host: %s\n", outcome.c_str());
  std::printf("host: the signals are %s\n", before == SignalState() ? "unchanged" : "CHANGED");
  return 0;
}
