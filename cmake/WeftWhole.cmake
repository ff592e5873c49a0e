# SPDX-License-Identifier: Apache-2.0
# Release builds by gcc: all of the library is optimised as one. Calls from core into a transport
# and back are many and small: without them small operations are some 8 % faster.
#
#   weft_whole(OBJECTS)   sets WEFT_OBJECTS to the one object that OBJECTS are turned into
#
# A gcc that cannot do so (its lto-wrapper is missing or does not run) builds them one by one.
# The result is plain code, so libweft.a links everywhere, with any compiler. Not with the tests:
# some put a file of their own in the place of one of the library's.
option(WEFT_WHOLE "Optimise the library as a whole (release builds by gcc, without the tests)" ON)

set(WEFT_WHOLE_FLAGS "")
if(WEFT_WHOLE AND CMAKE_BUILD_TYPE STREQUAL Release AND NOT WEFT_SANITIZE AND NOT WEFT_BUILD_TESTS
   AND CMAKE_C_COMPILER_ID STREQUAL GNU AND CMAKE_C_COMPILER_VERSION VERSION_GREATER 10)
    set(WEFT_WHOLE_FLAGS -flto=auto)
endif()
set(WEFT_WHOLE_LINK -fPIC -fvisibility=hidden ${WEFT_COPY_FLAGS} ${WEFT_WHOLE_FLAGS} -r -nostdlib -flinker-output=nolto-rel)

if(WEFT_WHOLE_FLAGS)
    set(try ${PROJECT_BINARY_DIR}/CMakeFiles/weft_whole_try)
    file(WRITE ${try}.c "int weft_whole_try(void);\nint weft_whole_try(void) { return 0; }\n")
    execute_process(COMMAND ${CMAKE_C_COMPILER} -O2 -fPIC ${WEFT_WHOLE_FLAGS} -c -o ${try}.o ${try}.c
                    OUTPUT_QUIET ERROR_QUIET) # what fails here fails below
    execute_process(COMMAND ${CMAKE_C_COMPILER} -O2 ${WEFT_WHOLE_LINK} -o ${try}_whole.o ${try}.o
                    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    if(failed)
        message(STATUS "The library is not optimised as a whole: ${CMAKE_C_COMPILER} cannot link with -flto")
        set(WEFT_WHOLE_FLAGS "")
    endif()
endif()

function(weft_whole)
    if(NOT WEFT_WHOLE_FLAGS)
        set(WEFT_OBJECTS ${ARGN} PARENT_SCOPE)
        return()
    endif()
    set(whole ${PROJECT_BINARY_DIR}/weft_whole.o)
    separate_arguments(flags NATIVE_COMMAND "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_RELEASE}")
    add_custom_command(OUTPUT ${whole}
        COMMAND ${CMAKE_C_COMPILER} ${flags} ${WEFT_WHOLE_LINK} -o ${whole} ${ARGN}
        DEPENDS ${ARGN} COMMAND_EXPAND_LISTS VERBATIM)
    add_custom_target(weft_whole DEPENDS ${whole}) # once, for both libraries
    get_property(targets GLOBAL PROPERTY WEFT_OBJECT_TARGETS)
    add_dependencies(weft_whole weft_core ${targets}) # the objects are there before it looks
    set_source_files_properties(${whole} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    set(WEFT_OBJECTS ${whole} PARENT_SCOPE)
endfunction()
