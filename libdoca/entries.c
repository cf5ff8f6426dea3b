// SPDX-License-Identifier: Apache-2.0

/* The entry of each function: a jump to the emu_ function of this package, so it has any argument
 * list, even a variable one. If the function may be made to fail, emu_strike says whether this call
 * does; until the library is configured, that may be any. In the shared library, the entries have
 * their DOCA names. Releases differ in whether a function is stable or experimental, so each one has
 * both version nodes there. */

#if defined(__x86_64__)
#define PLT "@PLT"
/* A variable argument list may be in the vector registers, and al says how many of them are used. */
#define ENTRY(name) \
	"cmpb $0, emu_faulty_" #name "(%rip)\n\t" \
	"jne 1f\n" \
	"0:\tjmp emu_" #name PLT "\n" \
	"1:\tpush %rax\n\t" \
	"push %rdi\n\tpush %rsi\n\tpush %rdx\n\tpush %rcx\n\tpush %r8\n\tpush %r9\n\t" \
	"sub $128, %rsp\n\t" \
	"movaps %xmm0, (%rsp)\n\tmovaps %xmm1, 16(%rsp)\n\t" \
	"movaps %xmm2, 32(%rsp)\n\tmovaps %xmm3, 48(%rsp)\n\t" \
	"movaps %xmm4, 64(%rsp)\n\tmovaps %xmm5, 80(%rsp)\n\t" \
	"movaps %xmm6, 96(%rsp)\n\tmovaps %xmm7, 112(%rsp)\n\t" \
	"lea emu_faulty_" #name "(%rip), %rdi\n\t" \
	"call emu_strike" PLT "\n\t" \
	"mov %eax, %r11d\n\t" \
	"movaps (%rsp), %xmm0\n\tmovaps 16(%rsp), %xmm1\n\t" \
	"movaps 32(%rsp), %xmm2\n\tmovaps 48(%rsp), %xmm3\n\t" \
	"movaps 64(%rsp), %xmm4\n\tmovaps 80(%rsp), %xmm5\n\t" \
	"movaps 96(%rsp), %xmm6\n\tmovaps 112(%rsp), %xmm7\n\t" \
	"add $128, %rsp\n\t" \
	"pop %r9\n\tpop %r8\n\tpop %rcx\n\tpop %rdx\n\tpop %rsi\n\tpop %rdi\n\t" \
	"pop %rax\n\t" \
	"test %r11d, %r11d\n\t" \
	"je 0b\n\t" \
	"mov %r11d, %eax\n\t" \
	"ret\n"
#elif defined(__aarch64__)
#define ENTRY(name) \
	"adrp x16, emu_faulty_" #name "\n\t" \
	"ldrb w16, [x16, #:lo12:emu_faulty_" #name "]\n\t" \
	"cbnz w16, 1f\n" \
	"0:\tb emu_" #name "\n" \
	"1:\tstp x29, x30, [sp, #-224]!\n\t" \
	"stp x0, x1, [sp, #16]\n\tstp x2, x3, [sp, #32]\n\t" \
	"stp x4, x5, [sp, #48]\n\tstp x6, x7, [sp, #64]\n\tstr x8, [sp, #80]\n\t" \
	"stp q0, q1, [sp, #96]\n\tstp q2, q3, [sp, #128]\n\t" \
	"stp q4, q5, [sp, #160]\n\tstp q6, q7, [sp, #192]\n\t" \
	"adrp x0, emu_faulty_" #name "\n\t" \
	"add x0, x0, #:lo12:emu_faulty_" #name "\n\t" \
	"bl emu_strike\n\t" \
	"mov w16, w0\n\t" \
	"ldp x0, x1, [sp, #16]\n\tldp x2, x3, [sp, #32]\n\t" \
	"ldp x4, x5, [sp, #48]\n\tldp x6, x7, [sp, #64]\n\tldr x8, [sp, #80]\n\t" \
	"ldp q0, q1, [sp, #96]\n\tldp q2, q3, [sp, #128]\n\t" \
	"ldp q4, q5, [sp, #160]\n\tldp q6, q7, [sp, #192]\n\t" \
	"ldp x29, x30, [sp], #224\n\t" \
	"cbz w16, 0b\n\t" \
	"mov w0, w16\n\t" \
	"ret\n"
#else
#error "libdoca is emulated on amd64 and arm64"
#endif

#ifdef EMU_SHARED
#define NAMES(name) \
	".globl stable_" #name "\n" \
	".type stable_" #name ", %function\n" \
	".set stable_" #name ", emu_entry_" #name "\n" \
	".globl experimental_" #name "\n" \
	".type experimental_" #name ", %function\n" \
	".set experimental_" #name ", emu_entry_" #name "\n" \
	".symver stable_" #name ", " #name "@@DOCA_2\n" \
	".symver experimental_" #name ", " #name "@EXPERIMENTAL\n"
#else
#define NAMES(name)
#endif

#define EMU_FUNCTION(library, name, first) \
	__asm__(".pushsection .data\n" \
		".globl emu_faulty_" #name "\n" \
		".hidden emu_faulty_" #name "\n" \
		"emu_faulty_" #name ":\t.byte 1\n" \
		".popsection\n" \
		".pushsection .text\n" \
		".globl emu_entry_" #name "\n" \
		".hidden emu_entry_" #name "\n" \
		".type emu_entry_" #name ", %function\n" \
		"emu_entry_" #name ":\n\t" ENTRY(name) \
		".size emu_entry_" #name ", . - emu_entry_" #name "\n" \
		NAMES(name) \
		".popsection\n");
#include "functions.h"
