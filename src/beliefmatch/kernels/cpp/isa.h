// The whole computation for one instruction set: included with LANE_BYTES and the target set, inside a namespace.
#include "lanes.h"

#include "staging.h"

#include "finish.h"

#include "plain.h"

#include "rows.h"

#include "columns.h"

#include "soft.h"

#include "exact.h"

#include "run.h"

#include "measures.h"

#include "apart.h"

#include "close.h"

#include "divergence.h"

#include "variance.h"

#include "readings.h"
