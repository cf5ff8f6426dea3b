/* Both sides of a connection whose details the user carries from one to the other. */
#ifndef RDMA_COMMON_H_
#define RDMA_COMMON_H_

#include <stdbool.h>

/* Sends a note to the peer, or receives it. */
int run(int argc, char **argv, bool is_sender);

#endif
