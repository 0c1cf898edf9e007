#include "softmax_entry.h"

TORCHCAPS_SOFTMAX_ROUTING(double, f64)
