// The library's face: a program of a user's own that trains like `starling train`, with the same configuration.
//
//   int main(int argc, char** argv) {
//     starling::Run run = starling::init(argc, argv);
//     run.fit(starling::model<Net>(), starling::cross_entropy, starling::tensor_source(x, y));
//   }
//
// Nothing in it knows of ranks. The program alone is one rank; `-n 4` makes init() start four copies of it; under torchrun
// and srun each process finds its rank in the environment.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/data/source.h"
#include "starling/nn/model.h"
#include "starling/spec/run_spec.h"
#include "starling/telemetry/event.h"

namespace starling {

// loss(output, target): a scalar, the mean over the samples.
using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;
// Makes a fresh module and its forward; called once a replica.
using ModuleFactory = std::function<Model()>;

// The factory of a module class with `at::Tensor forward(at::Tensor)`; `arguments` go to its constructor.
template <typename Net, typename... Arguments>
ModuleFactory model(Arguments... arguments) {
  return [=] {
    auto net = std::make_shared<Net>(arguments...);
    return Model{net, [net](const at::Tensor& input) { return net->forward(input); }, nullptr};
  };
}

class Session;

class Run {
 public:
  ~Run();
  Run(Run&&) noexcept;

  const RunSpec& spec() const;
  // The command line without what was configuration.
  const std::vector<std::string>& arguments() const { return arguments_; }
  int rank() const;

  // Trains as configured, evaluates on `test` (may be null), saves where --save says. The summary is complete on rank 0.
  // Collective over the ranks. A fault (starling::Error) is told to the launcher and ends this process with a message and
  // the exit status of its kind; it is thrown instead where the program asked for it by throw_faults().
  RunResult fit(const ModuleFactory& module, const Loss& loss, std::shared_ptr<const Source> train,
                std::shared_ptr<const Source> test = nullptr);
  void throw_faults() { throw_faults_ = true; }

 private:
  friend Run init(int argc, const char* const* argv);
  Run(std::unique_ptr<Session> session, std::vector<std::string> arguments);

  std::unique_ptr<Session> session_;
  std::vector<std::string> arguments_;
  bool throw_faults_ = false;
};

// Reads -c FILE, --set key=value and the flags of `starling train` from the command line, and takes this process's place in
// its job. Does not return in a process that starts the ranks (-n N): it exits with their status. A wrong configuration ends
// the process with a message and status 2.
Run init(int argc, const char* const* argv);

}  // namespace starling
