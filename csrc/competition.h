// Who competes for a child that several windows see.
#pragma once
#include <cstdint>

namespace torchcaps {

enum CompetitionKind : int64_t {
  window_competition = 0,    // the parent types of each window, window by window
  global_competition = 1,    // all windows and types that see the child, once
  position_competition = 2,  // all windows that see the child, once for each type
};

}  // namespace torchcaps
