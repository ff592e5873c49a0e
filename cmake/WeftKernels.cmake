# SPDX-License-Identifier: Apache-2.0
# Weft's kernels (gpu/kernels) for a vendor's GPUs, as bytes in the backend. Without the vendor's compiler the backend is built all the
# same, and copies what it can by other means.
#
#   weft_add_kernels(NAME COMMAND compiler flag... TARGETS "flag|..." ...)
#
# TARGETS are kinds of processors, best first: the first that the compiler takes, with the kernels themselves, is what they are compiled for.
# The compiler is given -I for the kernels' words and -o IMAGE SOURCE. WEFT_<NAME>_KERNELS is defined for the backend, which then has
# weft_<name>_kernels[] and nothing else of it.
option(WEFT_KERNELS "Compile kernels for GPUs, if there is a compiler for them" ON)

set(WEFT_KERNEL_SOURCE ${PROJECT_SOURCE_DIR}/gpu/kernels/copy.cu)
set(WEFT_IMAGE_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/image.cmake)

# The first of the targets that works, to `out` of the caller; empty: none. Remembered for a compiler and its flags.
function(weft__kernel_targets out name)
    cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "COMMAND;TARGETS")
    string(SHA256 asked "${arg_COMMAND} ${arg_TARGETS}")
    if(NOT WEFT_${name}_KERNELS_ASKED STREQUAL asked)
        set(found "")
        foreach(target IN LISTS arg_TARGETS)
            string(REPLACE "|" ";" flags "${target}")
            execute_process(COMMAND ${arg_COMMAND} ${flags} -o ${CMAKE_CURRENT_BINARY_DIR}/try.image ${WEFT_KERNEL_SOURCE}
                            RESULT_VARIABLE result OUTPUT_FILE ${CMAKE_CURRENT_BINARY_DIR}/try.log
                            ERROR_FILE ${CMAKE_CURRENT_BINARY_DIR}/try.log)
            if(result EQUAL 0)
                set(found ${target})
                break()
            endif()
        endforeach()
        set(WEFT_${name}_KERNELS_ASKED ${asked} CACHE INTERNAL "")
        set(WEFT_${name}_KERNELS_TARGET "${found}" CACHE INTERNAL "")
    endif()
    set(${out} "${WEFT_${name}_KERNELS_TARGET}" PARENT_SCOPE)
endfunction()

function(weft_add_kernels name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "COMMAND;TARGETS")
    list(APPEND arg_COMMAND -I ${CMAKE_CURRENT_SOURCE_DIR} -I ${PROJECT_SOURCE_DIR}/gpu)
    weft__kernel_targets(target ${name} COMMAND ${arg_COMMAND} TARGETS ${arg_TARGETS})
    if(NOT target)
        weft__note(kernels ${name} "left out: the compiler does not take them (${CMAKE_CURRENT_BINARY_DIR}/try.log)")
        return()
    endif()
    weft__note(kernels ${name} "${target}")
    string(REPLACE "|" ";" flags "${target}")
    set(image ${CMAKE_CURRENT_BINARY_DIR}/kernels.image)
    set(code ${CMAKE_CURRENT_BINARY_DIR}/kernels.c)
    file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/gpu/kernels/*.h)
    add_custom_command(OUTPUT ${code}
        COMMAND ${arg_COMMAND} ${flags} -o ${image} ${WEFT_KERNEL_SOURCE}
        COMMAND ${CMAKE_COMMAND} -D IMAGE=${image} -D CODE=${code} -D NAME=weft_${name}_kernels -P ${WEFT_IMAGE_SCRIPT}
        DEPENDS ${WEFT_KERNEL_SOURCE} ${headers} ${CMAKE_CURRENT_SOURCE_DIR}/weftd.h ${WEFT_IMAGE_SCRIPT}
        COMMENT "Compiling kernels for ${name}" VERBATIM)
    string(TOUPPER ${name} upper)
    target_sources(weft_gpu_${name} PRIVATE ${code})
    target_compile_definitions(weft_gpu_${name} PRIVATE WEFT_${upper}_KERNELS)
endfunction()

# Is it a backend of this build, whose kernels are wanted? To `out` of the caller.
function(weft_wants_kernels name out)
    get_property(gpus GLOBAL PROPERTY WEFT_GPU_BUILT)
    set(${out} FALSE PARENT_SCOPE)
    if(WEFT_KERNELS AND name IN_LIST gpus)
        set(${out} TRUE PARENT_SCOPE)
    endif()
endfunction()
