// The functions that patches call in the CUDA backend.
#pragma once

#include "attend_graph.h"
#include "lane_order_tensor.h"
#include "mmq_direct.h"

// Gives other libraries a function of the backend by its name; null for any other name.
void * qcls_cuda_function(const char * name);

// Counts one more CUDA graph that this process launched.
void qcls_count_graph_launch();
