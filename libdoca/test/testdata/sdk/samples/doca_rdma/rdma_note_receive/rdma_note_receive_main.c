#include "rdma_common.h"

int main(int argc, char **argv)
{
	return run(argc, argv, false);
}
