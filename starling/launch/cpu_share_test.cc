#include "starling/launch/cpu_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace starling {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Two packages of two cores with two hardware threads each, numbered as in Linux.
std::vector<Cpu> two_sockets() {
  return {{0, 0, 0}, {1, 1, 0}, {2, 2, 1}, {3, 3, 1}, {4, 0, 0}, {5, 1, 0}, {6, 2, 1}, {7, 3, 1}};
}

TEST(CpuShares, WholeCoresOfOneSocket) {
  EXPECT_THAT(cpu_shares(two_sockets(), 2, 2), ElementsAre(ElementsAre(0, 1, 4, 5), ElementsAre(2, 3, 6, 7)));
  EXPECT_THAT(cpu_shares(two_sockets(), 4, 1),
              ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
}

TEST(CpuShares, AllCoresAreGivenOut) {
  EXPECT_THAT(cpu_shares(two_sockets(), 3, 1),
              ElementsAre(ElementsAre(0, 1, 4, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
}

TEST(CpuShares, HardwareThreadsWhereCoresAreTooFewAndNothingBeyond) {
  EXPECT_EQ(cpu_shares(two_sockets(), 8, 1).size(), 8u);
  EXPECT_THAT(cpu_shares(two_sockets(), 8, 2), IsEmpty());
  EXPECT_THAT(cpu_shares(two_sockets(), 9, 1), IsEmpty());
  EXPECT_THAT(cpu_shares({}, 1, 1), IsEmpty());
}

TEST(CpuShares, ThisMachine) {
  const std::vector<Cpu> cpus = usable_cpus();
  ASSERT_FALSE(cpus.empty());
  EXPECT_GE(count_cores(cpus), 1);
  EXPECT_EQ(cpu_shares(cpus, 1, 1).at(0).size(), cpus.size());
}

}  // namespace
}  // namespace starling
