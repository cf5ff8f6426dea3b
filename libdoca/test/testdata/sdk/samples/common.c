#include "common.h"

struct doca_dev *open_capable(doca_error_t (*is_capable)(const struct doca_devinfo *info))
{
	struct doca_devinfo **list;
	struct doca_dev *dev = NULL;
	uint32_t count;

	OK(doca_devinfo_create_list(&list, &count));
	for (uint32_t i = 0; i < count && dev == NULL; i++) {
		if (is_capable(list[i]) == DOCA_SUCCESS)
			OK(doca_dev_open(list[i], &dev));
	}
	OK(doca_devinfo_destroy_list(list));
	if (dev == NULL) {
		fprintf(stderr, "error: no device is capable\n");
		exit(EXIT_FAILURE);
	}
	return dev;
}

/* The file appears whole: another process may wait for it. */
void write_file(const char *name, const void *data, size_t length)
{
	char temporary[256];
	FILE *file;

	snprintf(temporary, sizeof temporary, "%s.new", name);
	file = fopen(temporary, "wb");
	if (file == NULL || fwrite(data, 1, length, file) != length || fclose(file) != 0 ||
	    rename(temporary, name) != 0) {
		perror(name);
		exit(EXIT_FAILURE);
	}
}

size_t read_file(const char *name, void *data, size_t size)
{
	FILE *file = fopen(name, "rb");
	size_t length;

	if (file == NULL) {
		perror(name);
		exit(EXIT_FAILURE);
	}
	length = fread(data, 1, size, file);
	(void)fclose(file);
	return length;
}
