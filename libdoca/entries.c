//go:build libdoca_shared

/* The functions of the shared library, by their DOCA names. Each is a jump to the emu_ function of
 * this package, so it has any argument list, even a variable one. Releases differ in whether a
 * function is stable or experimental, so each one has both version nodes. */

#if defined(__x86_64__)
#define JUMP "jmp emu_"
#define PLT "@PLT"
#elif defined(__aarch64__)
#define JUMP "b emu_"
#define PLT ""
#else
#error "libdoca is emulated on amd64 and arm64"
#endif

#define EMU_FUNCTION(library, name, first) \
	__asm__(".pushsection .text\n" \
		".globl stable_" #name "\n" \
		".type stable_" #name ", %function\n" \
		"stable_" #name ":\n" \
		".globl experimental_" #name "\n" \
		".type experimental_" #name ", %function\n" \
		"experimental_" #name ":\n\t" JUMP #name PLT "\n" \
		".size stable_" #name ", . - stable_" #name "\n" \
		".size experimental_" #name ", . - experimental_" #name "\n" \
		".symver stable_" #name ", " #name "@@DOCA_2\n" \
		".symver experimental_" #name ", " #name "@EXPERIMENTAL\n" \
		".popsection\n");
#include "functions.h"
