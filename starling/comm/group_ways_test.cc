// Runs the tests of group_processes_test.cc over the transports that need no library beside Starling.
#include "starling/testing/group_processes.h"

namespace starling {
namespace {

constexpr Way kSharedMemory{"SharedMemory", Transport::kSharedMemory};
constexpr Way kTcp{"Tcp", Transport::kTcp};

INSTANTIATE_TEST_SUITE_P(Ways, GroupProcesses, testing::Values(kSharedMemory, kTcp), name_of_way);
INSTANTIATE_TEST_SUITE_P(Ways, ConnectedProcesses, testing::Values(kTcp), name_of_way);

}  // namespace
}  // namespace starling
