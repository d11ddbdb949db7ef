#include "starling/spec/on_failure.h"

#include "starling/spec/mesh.h"
#include "starling/spec/strategy_table.h"

namespace starling {

bool has_servers(const RunSpec& spec) {
  return exchange_traits(spec).servers;
}

bool has_whole_models(const RunSpec& spec) {
  const MeshSpec mesh = parse_mesh(spec.train.mesh, spec.train.ranks);
  return mesh.stage == 1 && mesh.tensor == 1 && spec.train.hybrid == "none";
}

bool evaluates_alone(const RunSpec& spec) {
  return has_whole_models(spec) && spec.train.shard != Shard::kParameters;
}

bool saves_on_request(const RunSpec& spec) {
  const ExchangeTraits& exchange = exchange_traits(spec);
  const bool backups = exchange.reads("backup") && spec.exchange.backup > 0;
  const bool seldom = exchange.reads("fetch_every") && spec.exchange.fetch_every > 1;
  return !exchange.servers || (!backups && !seldom);
}

bool goes_on_after_loss(const RunSpec& spec) {
  switch (spec.train.on_failure) {
    case OnFailure::kStop:
      return false;
    case OnFailure::kContinue:
      return true;
    case OnFailure::kAuto:
      return has_servers(spec) && has_whole_models(spec) && !in_lockstep(spec);
  }
  return false;
}

}  // namespace starling
