#include "starling/c10d/process_group.h"

#include <memory>
#include <utility>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/run/run.h"
#include "starling/run/run_state.h"

namespace starling {

c10::intrusive_ptr<c10d::ProcessGroup> Run::process_group() {
  using Held = c10::intrusive_ptr<c10d::ProcessGroup>;
  return with_faults_reported(*state_, [&] {
    if (is_server())
      throw Error(ErrorCode::kInternal, "Run::process_group: this process is a server, and no rank");
    if (!state_->process_group) {
      std::shared_ptr<Group> group = state_->session
                                         ? state_->session->run_environment().make_group("program", {})
                                         : make_single_group();
      // A program may still hold the group when the Run or the session ends. Its threads end here.
      state_->process_group =
          std::shared_ptr<Held>(new Held(make_process_group(std::move(group))), [](Held* held) {
            (*held)->getDefaultBackend()->shutdown();
            delete held;
          });
    }
    return *static_cast<const Held*>(state_->process_group.get());
  });
}

}  // namespace starling
