/* SPDX-License-Identifier: Apache-2.0 */
/* The code of docs/base.md: errors, settings, logs. */
#include <stdio.h>
#include <string.h>

#include "weft.h"

/* quote log */
static void on_line(enum weft_log_level level, const char *subsystem, const char *line, void *user)
{
    fprintf(user, "%d %s: %s\n", level, subsystem, line); /* never call Weft from here */
}
/* end */

int main(void)
{
    /* quote start */
    printf("weft %s\n", weft_version());
    int rc = weft_config_set("WEFT_CHUNK", "2M"); /* else the environment, else the default */
    if (rc < 0)
        fprintf(stderr, "%s: %s\n", weft_err_name(rc), weft_last_error());

    struct weft_config_item item;
    for (int i = 0; weft_config_get(i, &item) == 0; i++)
        printf("%s = %s (%s)\n", item.name, item.value, item.help);
    /* end */

    weft_log_set(on_line, stderr);
    /* quote scope */
    switch (weft_err_scope(rc)) {
    case WEFT_SCOPE_NONE:
        break; /* no error */
    case WEFT_SCOPE_OP:
        break; /* correct the operation, or post it again */
    case WEFT_SCOPE_LINK:
    case WEFT_SCOPE_CONN:
        break; /* close the conn, connect again */
    default:
        return 1; /* open the endpoint again, or use another device */
    }
    /* end */
    return rc < 0 || weft_config_set("WEFT_NOTHING", "1") != WEFT_ECONFIG || !*weft_last_error();
}
