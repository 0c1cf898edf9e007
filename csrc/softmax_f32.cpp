#include "softmax_entry.h"

TORCHCAPS_SOFTMAX_ROUTING(float, f32)
