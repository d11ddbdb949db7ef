#include "starling/run/thread_waiting.h"

#include <unistd.h>

#include <cstdlib>

#include "starling/launch/launch_options.h"
#include "starling/run/session.h"

namespace starling {

void wait_briefly(const RunSpec& spec, const Environment& environment, const std::vector<std::string>& argv) {
  const bool told = std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
  if (told || environment.identity.origin != ProcessOrigin::kAlone) return;
  if (spec.train.threads_divide_samples() || resolved(spec, environment).train.threads <= 1) return;
  ::setenv("GOMP_SPINCOUNT", kBriefSpin, 1);
  std::vector<char*> words;
  words.reserve(argv.size() + 1);
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv("/proc/self/exe", words.data());
}

}  // namespace starling
